"""The attention layer as scoring computes it: what a neighbourhood's seeds share, once.

The heads' results enter the merge layer linearly, so the value projection and the merge's first
matrix become one matrix per head, applied to table rows, event features and time codes apart. Of
those only the time codes differ between two seeds with the same neighbours. A seed's embedding
depends on its own inputs alone, to the bit: not on the seeds beside it, nor on what is shared.

Shape legend: S seeds, K slots, G groups (distinct neighbourhoods), A distinct own rows, R table
rows, D table width, F event-feature width, T time-code width, W = D + F + T, H heads, d = width
per head, E = H d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop
from tidegraph.batches.rows import distinct, transposed
from tidegraph.ops import shared_embedding, shared_kernels
from tidegraph.ops.deferred import Deferred
from tidegraph.ops.feature_rows import feature_array
from tidegraph.ops.row_products import packed_columns, row_product

if TYPE_CHECKING:
    from tidegraph.ops.layer import LayerWeights

_MOST_GROUPS = 8192  # at once: bounds what is kept by group, about 4 KB each


@dataclass(frozen=True, eq=False)
class _Groups:
    """Distinct neighbourhoods; seeds in their order, from `indptr_G1[g]` to `indptr_G1[g + 1]`."""

    group_S: np.ndarray
    seed_S: np.ndarray
    indptr_G1: np.ndarray
    self_G: np.ndarray
    neighbor_GK: np.ndarray
    event_GK: np.ndarray

    @classmethod
    def of(cls, hop: Hop) -> _Groups:
        self_S, count_S = hop.self_S.numpy(), hop.count_S.numpy()
        neighbor_SK, event_SK = hop.neighbor_SK.numpy(), hop.event_SK.numpy()
        S, K = neighbor_SK.shape
        group_S, first_S = np.empty(S, np.int32), np.empty(S, np.int32)
        G = shared_kernels.group_seeds(self_S, neighbor_SK, event_SK, count_S, group_S, first_S)
        indptr_G1, seed_S = transposed(group_S, G)
        neighbor_GK, event_GK = np.empty((G, K), np.int32), np.empty((G, K), np.int32)
        shared_kernels.used_slots(
            first_S[:G], neighbor_SK, event_SK, count_S, neighbor_GK, event_GK
        )
        return cls(group_S, seed_S, indptr_G1, self_S[first_S[:G]], neighbor_GK, event_GK)


def shared_layer(
    table_RD: Tensor, weights: LayerWeights, hop: Hop, features_EF: Tensor
) -> Deferred:
    """`attention_layer` without gradients and dropout, in float32 on a CPU.

    Args:
        table_RD: [R, D], rows of the layer below.
        weights: parameters.
        hop: neighbourhoods.
        features_EF: [N, F] event features.

    Returns:
        [S, E], before the merge layer's last product.
    """
    w = weights
    H, d, _ = w.key.shape
    E, D, F = H * d, table_RD.shape[1], features_EF.shape[1]
    table_RD = table_RD.detach().contiguous()
    groups = _Groups.of(hop)
    fold_WHE = w.value.new_empty(w.value.shape[1], H, E)
    for h in range(H):
        row_product(w.value[h], w.merge_in[:, h * d : h * d + d].t(), out_IK=fold_WHE[:, h])
    value_VE, value_GK = _projected(table_RD, groups.neighbor_GK, fold_WHE[:D].flatten(1))
    feature_NE, feature_GK = value_VE[:0], groups.event_GK
    if F:
        feature_NE, feature_GK = _projected(
            features_EF, groups.event_GK, fold_WHE[D : D + F].flatten(1)
        )
    delta_SK = hop.delta_SK.contiguous().numpy()
    time_packed = packed_columns(fold_WHE[D + F :].transpose(0, 1).flatten(0, 1))
    hidden_SE = table_RD.new_empty(len(groups.group_S), E)
    for first in range(0, len(groups.self_G), _MOST_GROUPS):
        last = min(first + _MOST_GROUPS, len(groups.self_G))
        own_A, own_G = _distinct(groups.self_G[first:last])
        query_AHW, base_AE = _own_parts(table_RD, own_A, w)
        score_GHK = np.empty((last - first, H, hop.neighbor_SK.shape[1]), np.float32)
        shared_kernels.static_scores(
            own_G, groups.neighbor_GK[first:last], groups.event_GK[first:last],
            query_AHW.numpy(), table_RD.numpy(), feature_array(features_EF), score_GHK,
        )  # fmt: skip
        seed_X = groups.seed_S[groups.indptr_G1[first] : groups.indptr_G1[last]]
        shared_embedding.embed_seeds(
            seed_X, groups.group_S - first if first else groups.group_S, delta_SK,
            own_G, value_GK[first:last], feature_GK[first:last], query_AHW.numpy(),
            base_AE.numpy(), score_GHK, value_VE.numpy(), feature_NE.numpy(), time_packed,
            w.time.detach().numpy(), w.time_bias.detach().numpy(), hidden_SE.numpy(),
        )  # fmt: skip
    return Deferred(hidden_SE, w.merge_out, w.merge_out_bias)


def _own_parts(table_RD: Tensor, own_A: np.ndarray, w: LayerWeights) -> tuple[Tensor, Tensor]:
    """By own row: queries with the key projection applied [A, H, W], and the hidden layer's own
    part [A, E]."""
    H, d, W = w.key.shape
    E = H * d
    own_AD = table_RD.index_select(0, torch.from_numpy(own_A))
    # Phi(0) = cos(b) is the same for every seed: its projection is a bias.
    code_1T = torch.cos(w.time_bias).unsqueeze(0)
    bias_E = w.query_bias
    if w.query_time.shape[1] > 0:
        bias_E = bias_E + row_product(code_1T, w.query_time.t())[0]
    query_AE = row_product(own_AD, w.query.t(), bias_E)
    query_AHW = own_AD.new_empty(len(own_A), H, W)
    key_HdW = w.key / math.sqrt(d)
    for h in range(H):
        row_product(query_AE[:, h * d : h * d + d], key_HdW[h], out_IK=query_AHW[:, h])
    return query_AHW, row_product(own_AD, w.merge_in[:, E:].t(), w.merge_in_bias)


def _projected(
    rows_RX: Tensor, index_GK: np.ndarray, matrix_XY: Tensor
) -> tuple[Tensor, np.ndarray]:
    """The named rows, each once, times a matrix; and where each slot's is (-1 for none)."""
    named_V, place = _distinct(index_GK.reshape(-1))
    named_VX = rows_RX.index_select(0, torch.from_numpy(named_V)).float()
    return row_product(named_VX, matrix_XY), place.reshape(index_GK.shape)


def _distinct(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers, and for each given one its place among them; negative ones keep -1."""
    first, place = distinct(index)
    return index[first], place
