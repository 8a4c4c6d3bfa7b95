"""Side-by-side training of the same TGN by several libraries: `benchmarks/peers.py` runs it.

One file per library (`pyg`, `tgm`, `tglite`, `tidegraph`) says how that library trains, as its own
documentation does it; the rest is shared, so that nobody is measured with another yardstick.
"""

from __future__ import annotations

LIBRARIES = ("tidegraph", "pyg", "tgm", "tglite")
"""Names of the adapters, in the order of the first round."""
