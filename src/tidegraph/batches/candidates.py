"""`Candidates`: the destinations a positive is ranked against, wherever they come from.

Shape legend: B rows, C candidates per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Candidates:
    """Destinations to rank a positive against.

    Attributes:
        node_BC: [B, C] int32 internal nodes.
        mask_BC: [B, C] bool, False where a slot is padding (or a true destination that was
            filtered out); None where every slot counts.
    """

    node_BC: np.ndarray
    mask_BC: np.ndarray | None = None
