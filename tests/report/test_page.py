"""report.html: self-contained, complete, and safe with any text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tidegraph.report.charts import Curve, curves_svg
from tidegraph.report.critical_path import critical_path_line
from tidegraph.report.page import page_html, write_page
from tidegraph.report.plain import plain


def values(**changes: Any) -> dict[str, Any]:
    """What `tidegraph train --json` prints, for a run of two epochs."""
    figures = [
        {"name": "AP", "value": 0.9, "protocol": "P", "count": 3},
        {"name": "MRR", "value": None, "protocol": "Q <b>", "count": 3, "undefined": "why"},
    ]
    epoch = {
        "metrics": {"AP": 0.8, "AUC": 0.7},
        "protocols": {"AP": "P", "AUC": "P"},
        "stages": {"prepare": 1.0, "forward": 3.0, "gather": 2.0},
    }
    return {
        "data": {"name": "trips <x>", "events": 100, "nodes": 9, "event_features": 2,
                 "fingerprint": "f" * 64, "parts": {"train": 70, "val": 15, "test": 15}},
        "settings": {"model": {"name": "tgn", "memory": 8}, "training": {"clip": None},
                     "split": {"val": 0.15}},
        "epochs": [{"epoch": 0, "loss": 0.6, **epoch}, {"epoch": 1, "loss": 0.5, **epoch}],
        "best_epoch": 1,
        "test": {"name": "TGN", "metrics": figures, "inductive": None},
        "baselines": [{"name": "EdgeBank", "metrics": figures[:1], "inductive": None}],
        "events_per_second": 1234.0,
        "seconds": {"prepare": 2.0, "forward": 6.0, "gather": 4.0, "test": 1.0, "total": 20.0},
        "peak_resident_bytes": 2**30,
        "paths": {"run": "runs/x"},
        "versions": {"tidegraph": "0.1.0"},
    } | changes  # fmt: skip


def test_nothing_is_loaded_from_anywhere() -> None:
    html = page_html("x", values())
    assert "<script" not in html
    assert re.findall(r"(?:src|href)=\"(?!#)", html.replace("xlink:href", "href")) == []


def test_figures_protocols_settings_and_slowest_stages_are_there() -> None:
    html = page_html("x", values())
    for text in ("0.9000", "undefined", "1: P", "1,024 MiB", "<dt>memory</dt><dd>8</dd>",
                 "Slowest: forward and gather.", "3.00 s an epoch, 50%", "2 of 2"):  # fmt: skip
        assert text in html
    assert html.count("<svg") == 2


def test_text_is_escaped() -> None:
    html = page_html("<i>", values())
    assert "<i>trips" not in html
    assert "trips &lt;x&gt;" in html
    assert "Q &lt;b&gt;" in html


def test_tags_are_balanced() -> None:
    class Balance(HTMLParser):
        open: list[str] = []

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag not in ("meta", "br"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    parser.feed(re.sub(r"<svg.*?</svg>", "", page_html("x", values()), flags=re.S))
    assert parser.open == []


def test_a_run_without_test_split_or_epochs_has_a_page(tmp_path: Path) -> None:
    path = write_page(
        tmp_path, values(test=None, baselines=[], epochs=[], events_per_second=None, seconds={})
    )
    assert "nothing measured" in path.read_text()


def test_undefined_figures_are_gaps() -> None:
    epochs = [dict(one, metrics={"AP": None, "AUC": 0.5}) for one in values()["epochs"]]
    assert page_html("x", values(epochs=epochs)).count("<svg") == 2


def test_json_holds_no_nan() -> None:
    assert plain({"a": [float("nan"), 1.0], "b": (1, "x")}) == {"a": [None, 1.0], "b": [1, "x"]}


def test_a_chart_is_the_same_each_time() -> None:
    curves = [Curve("AP", [0.5, 0.6])]
    assert curves_svg(curves, "t", 1) == curves_svg(curves, "t", 1)
    assert curves_svg(curves, "t").startswith("<svg")


def test_what_threads_hid_and_what_was_waited_for() -> None:
    """Ten seconds: two waiting for preparation, which took five; six forward; two unaccounted."""
    epochs = [
        dict(
            one, exposed={"prepare": 2.0, "forward": 6.0}, seconds=10.0, staleness={"0": 1, "2": 7}
        )
        for one in values()["epochs"]
    ]
    for one in epochs:
        one["stages"] = {"prepare": 5.0, "wait": 2.0, "forward": 6.0}
    html = page_html("x", values(epochs=epochs))
    assert "On the critical path: prepare 20% exposed (30% hidden)." in html
    assert "older than the newest: 2 by 0, 14 by 2." in html
    assert "2.00 s an epoch, 20%" in html
    assert critical_path_line(epochs) == "forward 60%, prepare 20% exposed (30% hidden), other 20%"
    assert critical_path_line(values()["epochs"]) is None
