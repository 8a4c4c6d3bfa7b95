"""CPU kernels that compare what two roots have met: how often each node occurs in a row of nodes.

Rows are short (tens to hundreds), so every node is compared with every other: the comparisons are
vectorised, and no table has to be built for a pair.

Shape legend: S seeds, P pairs, J nodes in a row (padding -1), M walks, L positions of a walk.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel

_BLOCK = 8


@kernel()
def _count(node_J, other_J, used, out_J):  # type: ignore[no-untyped-def]
    """out[j] = how often node[j] is among the first `used` of `other`; 0 for padding."""
    for j in range(node_J.shape[0]):
        node = node_J[j]
        total = np.int32(0)
        if node >= 0:
            for i in range(used):
                total += np.int32(other_J[i] == node)
        out_J[j] = total


@kernel(block=True)
def _count_own_block(first, last, node_SJ, used_S, out_SJ):  # type: ignore[no-untyped-def]
    for s in range(first, last):
        _count(node_SJ[s], node_SJ[s], used_S[s], out_SJ[s])


@kernel()
def count_own(node_SJ, used_S, out_SJ):  # type: ignore[no-untyped-def]
    """How often each node of a row occurs in that row."""
    in_blocks(_count_own_block, node_SJ.shape[0], _BLOCK, (node_SJ, used_S, out_SJ))


@kernel(block=True)
def _count_across_block(first, last, node_SJ, used_S, source_P, target_P, out_P2J):  # type: ignore[no-untyped-def]
    for p in range(first, last):
        u, v = source_P[p], target_P[p]
        _count(node_SJ[u], node_SJ[v], used_S[v], out_P2J[p, 0])
        _count(node_SJ[v], node_SJ[u], used_S[u], out_P2J[p, 1])


@kernel()
def count_across(node_SJ, used_S, source_P, target_P, out_P2J):  # type: ignore[no-untyped-def]
    """How often each node of a pair's source row occurs in its target row, and the reverse."""
    in_blocks(
        _count_across_block, source_P.shape[0], _BLOCK,
        (node_SJ, used_S, source_P, target_P, out_P2J),
    )  # fmt: skip


@kernel(inner=True)
def _count_places(node_ML, other_ML, share, out_MLL):  # type: ignore[no-untyped-def]
    """out[m, i, l] = share of the other walks that have node[m, i] in position l; 0 for padding."""
    M, L = node_ML.shape
    count_L = np.empty(L, np.int32)
    for m in range(M):
        for i in range(L):
            node = node_ML[m, i]
            count_L[:] = 0
            # Position 0 is the root itself, in all walks alike.
            if node >= 0:
                count_L[0] = M * np.int32(other_ML[0, 0] == node)
                for w in range(M):
                    for place in range(1, L):
                        count_L[place] += np.int32(other_ML[w, place] == node)
            for place in range(L):
                out_MLL[m, i, place] = count_L[place] * share


@kernel(block=True)
def _places_own_one(s, _, node_SML, out_SMLL):  # type: ignore[no-untyped-def]
    share = np.float32(1.0 / node_SML.shape[1])
    _count_places(node_SML[s], node_SML[s], share, out_SMLL[s])


@kernel()
def places_own(node_SML, out_SMLL):  # type: ignore[no-untyped-def]
    """Where the nodes of a root's walks stand in these walks."""
    in_blocks(_places_own_one, node_SML.shape[0], 1, (node_SML, out_SMLL))


@kernel(block=True)
def _places_across_one(p, _, node_SML, source_P, target_P, out_P2MLL):  # type: ignore[no-untyped-def]
    share = np.float32(1.0 / node_SML.shape[1])
    u, v = source_P[p], target_P[p]
    _count_places(node_SML[u], node_SML[v], share, out_P2MLL[p, 0])
    _count_places(node_SML[v], node_SML[u], share, out_P2MLL[p, 1])


@kernel()
def places_across(node_SML, source_P, target_P, out_P2MLL):  # type: ignore[no-untyped-def]
    """Where the nodes of a pair's source walks stand in its target walks, and the reverse."""
    in_blocks(_places_across_one, source_P.shape[0], 1, (node_SML, source_P, target_P, out_P2MLL))
