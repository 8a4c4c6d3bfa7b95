"""Curves of a run as inline SVG, drawn by matplotlib (imported here and only on use)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

_INK, _GRID = "#44505c", "#e3e8ed"
_COLORS = ("#1f6f8b", "#d1495b", "#66a182", "#8d6a9f")


@dataclass(frozen=True)
class Curve:
    """One line of a chart: a value per epoch."""

    name: str
    values: Sequence[float]


def curves_svg(curves: Sequence[Curve], title: str, marked_epoch: int | None = None) -> str:
    """A chart of values by epoch as an `<svg>` element.

    Args:
        curves: at most four, equally long.
        title: above the chart.
        marked_epoch: from 0; a vertical line there (the best epoch).
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # Text stays text: it takes the page's font, can be found and copied, and keeps the page small.
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 10, "svg.hashsalt": "tidegraph"}):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for curve, color in zip(curves, _COLORS, strict=False):
            epochs = range(1, len(curve.values) + 1)
            axes.plot(epochs, curve.values, color=color, marker="o", markersize=3.5,
                      linewidth=1.8, label=curve.name)  # fmt: skip
        if marked_epoch is not None:
            axes.axvline(marked_epoch + 1, color=_INK, linewidth=1, linestyle=":", zorder=0)
        axes.set_title(title, loc="left", fontsize=11, color=_INK)
        axes.set_xlabel("epoch", color=_INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(axis="y", color=_GRID)
        axes.tick_params(colors=_INK, length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(_GRID)
        if len(curves) > 1:
            axes.legend(frameon=False, labelcolor=_INK)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]
