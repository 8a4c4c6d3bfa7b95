"""The table of a comparison: means and spreads, protocols as footnotes, nothing cut short."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tidegraph.report.compared import (
    Figure,
    Outcome,
    Row,
    columns_of,
    console_parts,
    json_rows,
    markdown,
)
from tidegraph.report.compared_figure import comparison_svg

AP, HARD = "1 random destination", "1 historical destination | batch 200"


def outcome(seed: int, ap: float | None, hard: float) -> Outcome:
    figures = (
        Figure("AP", AP, ap, 10, "" if ap is not None else "one class"),
        Figure("AP", HARD, hard, 10),
        Figure("Hits@3", AP, 0.5, 10),
    )
    return Outcome(seed, figures, 1200, 1000.0 * (seed + 1), 50.0, 3 << 20, "runs/x")


ROWS = (
    Row("tgn", {"memory": 8}, (outcome(0, 0.5, 0.25), outcome(1, 0.75, 0.5))),
    Row("own.py:Model", {}, (outcome(0, None, 0.125), Outcome(1, failed="no | luck"))),
)


def printed(width: int, rows: tuple[Row, ...] = ROWS) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in console_parts("two models", rows, width):
        console.print(part, soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [60, 90, 140, 300])
def test_every_number_is_whole_at_any_width(width: int) -> None:
    text = printed(width)
    assert "…" not in text
    for number in ("0.6250 ± 0.1768", "0.3750 ± 0.1768 *", "0.1250", "1,500", "1,200", "3 MiB"):
        assert number in text
    assert max(len(line) for line in text.splitlines() if line.startswith("│")) <= width


def test_a_protocol_is_a_column_of_its_own_and_a_footnote() -> None:
    columns = columns_of(ROWS)
    assert [(one.name, one.protocol, one.note) for one in columns] == [
        ("AP", AP, 1), ("AP", HARD, 2),
    ]  # fmt: skip
    text = printed(140)
    assert f"[1] {AP}" in text
    assert f"[2] {HARD}" in text
    assert "mean ± sample standard deviation over seeds 0, 1; over 10 test events" in text
    assert "own.py:Model, seed 1: failed: no | luck" in text
    assert "own.py:Model: AP undefined: one class" in text


def test_markdown_keeps_its_table_whatever_stands_in_it() -> None:
    page = markdown("two models", ROWS, ["data: x|y"], "comparison.svg")
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert {line.replace("\\|", "").count("|") for line in table} == {8}
    assert "1 historical destination \\| batch 200" in page
    assert "![two models](comparison.svg)" in page


def test_json_has_means_and_the_runs_behind_them() -> None:
    tgn, own = json_rows(ROWS)
    assert tgn["figures"][0] == {
        "name": "AP", "protocol": AP, "mean": 0.625, "spread": pytest.approx(0.17678, abs=1e-5),
        "seeds": 2,
    }  # fmt: skip
    assert [one["name"] for one in own["figures"]] == ["AP"]  # the undefined one has no mean
    assert own["figures"][0]["spread"] is None
    assert [run["failed"] for run in own["runs"]] == [None, "no | luck"]


def test_a_figure_of_rows_without_any_result_is_drawn_too() -> None:
    failed = Row("cawn", {}, (Outcome(0, failed="x"),))
    drawn = comparison_svg((*ROWS, failed), "three models")
    for text in ("cawn", "own.py:Model", "three models", "1 historical destination"):
        assert text in drawn
