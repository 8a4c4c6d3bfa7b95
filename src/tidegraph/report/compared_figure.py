"""The figure of a comparison: a panel of bars per metric and protocol, and one of speed.

Matplotlib is imported here and only on use.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from tidegraph.report.compared import Row, columns_of, summary

_INK, _GRID, _BAR = "#44505c", "#e3e8ed", "#1f6f8b"
_ACROSS = 4  # panels beside each other
_SPEED = "#66a182"


def comparison_svg(rows: Sequence[Row], title: str) -> str:
    """Bars with their spread as an SVG document; every panel names its protocol.

    Args:
        rows: models, drawn from the top down.
        title: above the panels.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = [column for column in columns_of(rows) if column.name in ("AP", "MRR")]
    rates = [[one.train_rate for one in row.done() if one.train_rate is not None] for row in rows]
    panels = len(columns) + 1
    across = min(panels, _ACROSS)
    down = -(-panels // across)
    names = [row.name for row in rows]
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": "tidegraph"}):
        size = (3.6 * across + 0.8, 0.3 + down * (1.4 + 0.34 * len(rows)))
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, color=_INK, fontsize=11)
        all_axes = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
        for axes in all_axes[panels:]:
            axes.set_axis_off()
        all_axes = all_axes[:panels]
        for axes, column in zip(all_axes, columns, strict=False):
            found = [summary(row, column) for row in rows]
            means = [0.0 if one is None else one.mean for one in found]
            spreads = [0.0 if one is None or one.spread is None else one.spread for one in found]
            axes.barh(names, means, xerr=spreads, color=_BAR, ecolor=_INK, height=0.65)
            axes.set_title(column.name, loc="left", color=_INK)
            axes.set_xlabel("\n".join(textwrap.wrap(column.protocol, 48)), fontsize=7, color=_INK)
        speed = [sum(one) / len(one) if one else 0.0 for one in rates]
        all_axes[-1].barh(names, speed, color=_SPEED, height=0.65)
        all_axes[-1].set_title("training events/s", loc="left", color=_INK)
        for axes in all_axes:
            axes.grid(axis="x", color=_GRID)
            axes.set_axisbelow(True)
            axes.tick_params(colors=_INK, length=0)
            axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
        all_axes[0].invert_yaxis()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
