"""report.html: one self-contained page per run, made from the run's JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tidegraph.report.charts import Curve, curves_svg
from tidegraph.report.console import FIGURES
from tidegraph.report.critical_path import AHEAD, StageShare, exposed_words, stage_shares
from tidegraph.report.plain import add_seconds
from tidegraph.train.run_files import write_atomically

_STEP = ("prepare", "forward", "backward", "optimizer", "write")
_OTHER = ("data", "compile", "validation", "test", "baselines")

_STYLE = """
:root { --ink: #22303c; --soft: #667480; --line: #e3e8ed; --accent: #1f6f8b; --back: #f5f7f9; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink);
       background: var(--back); margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 16px; margin: 0 0 12px; }
p { margin: 4px 0; } .soft { color: var(--soft); font-size: 13px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px;
          padding: 18px 20px; margin-top: 18px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 18px; } .pair section { min-width: 0; }
@media (max-width: 760px) { .pair { grid-template-columns: 1fr; } }
.figures { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 18px; }
.figure { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px;
          min-width: 130px; } .figure b { display: block; font-size: 22px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--soft); font-weight: 600; font-size: 13px; } td.best { font-weight: 700;
color: var(--accent); } sup { color: var(--soft); font-weight: 400; }
.bar { display: grid; grid-template-columns: 90px 1fr 175px; gap: 10px; align-items: center;
       margin: 5px 0; } .bar div { background: var(--line); border-radius: 4px; height: 14px; }
.bar i { display: block; background: var(--accent); border-radius: 4px; height: 14px; }
.bar span:last-child { text-align: right; font-variant-numeric: tabular-nums; font-size: 13px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0;
     font-size: 13px; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } svg text { font-family: inherit !important; }
"""


def write_page(directory: Path, values: Mapping[str, Any]) -> Path:
    """Write report.html into a run's directory.

    Args:
        directory: of the run.
        values: the object that `tidegraph train --json` prints.
    """
    path = directory / "report.html"
    write_atomically(path, page_html(directory.name, values))
    return path


def page_html(name: str, values: Mapping[str, Any]) -> str:
    """The page as text; nothing in it is loaded from anywhere."""
    data, versions = values["data"], values["versions"]
    parts = ", ".join(f"{count:,} {part}" for part, count in data["parts"].items())
    made = ", ".join(f"{escape(n)} {escape(v)}" for n, v in versions.items())
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style></head><body><main>",
            f"<h1>{escape(name)}</h1>",
            f'<p class="soft">{escape(data["name"])}: {data["events"]:,} events ({parts}), '
            f"{data['nodes']:,} nodes, {data['event_features']} features an event</p>",
            _headline(values),
            *_comparisons(values),
            _curves(values),
            _stages(values),
            _settings(values),
            f'<p class="soft">Made by {made}. Data fingerprint '
            f"{escape(data['fingerprint'][:16])}.</p>",
            "</main></body></html>",
        ]
    )


def _headline(values: Mapping[str, Any]) -> str:
    figures = []
    if values["test"]:
        found = {metric["name"]: metric["value"] for metric in values["test"]["metrics"]}
        figures += [(f"test {name}", _number(found[name])) for name in FIGURES if name in found]
    rate = values["events_per_second"]
    figures += [
        ("best epoch", f"{values['best_epoch'] + 1} of {len(values['epochs'])}"),
        ("training events/s", "-" if rate is None else f"{rate:,.0f}"),
        ("seconds in all", f"{values['seconds'].get('total', 0):,.0f}"),
        ("peak memory", f"{values['peak_resident_bytes'] / 2**20:,.0f} MiB"),
    ]
    cells = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span class="soft">{escape(label)}</span></div>'
        for label, value in figures
    )
    return f'<div class="figures">{cells}</div>'


def _comparisons(values: Mapping[str, Any]) -> list[str]:
    if not values["test"]:
        return []
    rows = [values["test"], *values["baselines"]]
    tables = [_comparison(rows, "metrics", "Test split, all events")]
    if values["test"]["inductive"]:
        tables.append(_comparison(rows, "inductive", "Test split, events with an unseen node"))
    return tables


def _comparison(rows: Sequence[Mapping[str, Any]], key: str, title: str) -> str:
    """A table in which every figure points to its protocol."""
    found = [(row["name"], {m["name"]: m for m in row[key] or ()}) for row in rows]
    names = [name for name in FIGURES if any(name in metrics for _, metrics in found)]
    notes: list[str] = []
    best = {name: _best([m[name]["value"] for _, m in found if name in m]) for name in names}
    body = []
    for label, metrics in found:
        cells = [f"<td>{escape(label)}</td>"]
        for name in names:
            metric = metrics.get(name)
            if metric is None:
                cells.append("<td>-</td>")
                continue
            if metric["protocol"] not in notes:
                notes.append(metric["protocol"])
            leads = ' class="best"' if metric["value"] == best[name] else ""
            mark = notes.index(metric["protocol"]) + 1
            cells.append(f"<td{leads}>{_number(metric['value'])} <sup>{mark}</sup></td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = "".join(
        f'<p class="soft">{place}: {escape(note)}</p>' for place, note in enumerate(notes, 1)
    )
    return (
        f"<section><h2>{escape(title)}</h2><table><tr><th></th>{heads}</tr>{''.join(body)}</table>"
        f"{lines}</section>"
    )


def _curves(values: Mapping[str, Any]) -> str:
    epochs = values["epochs"]
    if not epochs:
        return ""
    best = values["best_epoch"]
    names = [name for name in ("AP", "AUC", "MRR") if name in epochs[0]["metrics"]]
    loss = curves_svg([Curve("loss", [epoch["loss"] for epoch in epochs])], "training loss", best)
    validation = curves_svg(
        [Curve(name, [_drawn(epoch["metrics"][name]) for epoch in epochs]) for name in names],
        "validation",
        best,
    )
    protocols = "".join(
        f'<p class="soft">{escape(name)}: {escape(epochs[0]["protocols"][name])}</p>'
        for name in names
    )
    return (
        f'<div class="pair"><section>{loss}<p class="soft">mean over the events of an epoch; the '
        "dotted line is the best epoch</p></section>"
        f"<section>{validation}{protocols}</section></div>"
    )


def _stages(values: Mapping[str, Any]) -> str:
    seconds, epochs = values["seconds"], max(len(values["epochs"]), 1)
    shares = stage_shares(values["epochs"])
    step = {share.name: share.exposed for share in shares}
    if not shares:  # of a run that was trained before this was measured
        step = {name: seconds[name] for name in _STEP if name in seconds}
        step |= {name: s for name, s in seconds.items() if name in _all_stages(values)}
    other = {name: seconds[name] for name in _OTHER if seconds.get(name)}
    slowest = sorted(step, key=lambda name: -step[name])[:2]
    said = ""
    if slowest:
        said = f"<p>Slowest: {' and '.join(escape(name) for name in slowest)}.</p>"
    said += _exposed(shares) + _staleness(values)
    return (
        '<div class="pair"><section><h2>Where a training step goes</h2>'
        f"{_bars(step, epochs)}{said}</section>"
        f"<section><h2>The rest of the run</h2>{_bars(other, 1)}</section></div>"
    )


def _exposed(shares: Sequence[StageShare]) -> str:
    """What of the work that can be done ahead the training loop had to wait for."""
    whole = sum(share.exposed for share in shares) or 1.0
    words = [exposed_words(share, whole) for share in shares if share.name in AHEAD]
    return f"<p>On the critical path: {escape(', '.join(words))}.</p>" if words else ""


def _staleness(values: Mapping[str, Any]) -> str:
    """How old the versions were that batches have read."""
    counted = add_seconds(epoch.get("staleness", {}) for epoch in values["epochs"])
    if not counted:
        return ""
    words = [f"{count:,.0f} by {behind}" for behind, count in counted.items()]
    return f"<p>Batches that read a state older than the newest: {escape(', '.join(words))}.</p>"


def _all_stages(values: Mapping[str, Any]) -> set[str]:
    return {name for epoch in values["epochs"] for name in epoch["stages"]}


def _bars(seconds: Mapping[str, float], epochs: int) -> str:
    whole, longest = sum(seconds.values()) or 1.0, max(seconds.values(), default=0.0) or 1.0
    rows = []
    for name, value in seconds.items():
        per_epoch = f"{value / epochs:.2f} s an epoch" if epochs > 1 else f"{value:.2f} s"
        rows.append(
            f'<div class="bar"><span>{escape(name)}</span><div>'
            f'<i style="width:{100 * value / longest:.1f}%"></i></div>'
            f"<span>{per_epoch}, {value / whole:.0%}</span></div>"
        )
    return "".join(rows) or '<p class="soft">nothing measured</p>'


def _settings(values: Mapping[str, Any]) -> str:
    sections = []
    for name in ("model", "training", "split"):
        entries = "".join(
            f"<dt>{escape(key)}</dt><dd>{escape('-' if value is None else str(value))}</dd>"
            for key, value in values["settings"][name].items()
        )
        sections.append(f"<section><h2>{name.capitalize()}</h2><dl>{entries}</dl></section>")
    paths = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>"
        for key, value in values["paths"].items()
    )
    sections.append(f"<section><h2>Files</h2><dl>{paths}</dl></section>")
    return f'<div class="pair">{"".join(sections)}</div>'


def _drawn(value: float | None) -> float:
    """An undefined figure leaves a gap in its curve."""
    return math.nan if value is None else value


def _best(found: Sequence[float | None]) -> float | None:
    return max((value for value in found if value is not None), default=None)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
