"""The operators in plain PyTorch: the specification every fast version is tested against.

They run on any device and in float64 (for gradient checks), and they materialise everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop, Mail, Uses


def time_code(delta: Tensor, weight_T: Tensor, bias_T: Tensor) -> Tensor:
    """Phi(d) = cos(w d + b), argument formed in float64: [..., T] from [...]."""
    argument = delta.double().unsqueeze(-1) * weight_T.double() + bias_T.double()
    return torch.cos(argument).to(weight_T.dtype)


def gather_rows(table_RD: Tensor, index: Tensor, uses: Uses) -> Tensor:
    """table[index]; `uses` is the transpose of `index` and not needed here."""
    return table_RD[index.long()]


def temporal_attention(
    query_HSW: Tensor,
    table_RD: Tensor,
    hop: Hop,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    keep_SKH: Tensor | None = None,
) -> Tensor:
    """Sum over neighbours of softmax(query . x) x with x = [table row ; event features ; Phi]."""
    K = hop.neighbor_SK.shape[1]
    used_SK = torch.arange(K, device=query_HSW.device) < hop.count_S.unsqueeze(1)
    # Padding may hold anything, NaN included: it is replaced, not multiplied by zero. Differences
    # are replaced before the cosine, whose slope at NaN would spoil the gradient of its weights.
    delta_SK = hop.delta_SK.masked_fill(~used_SK, 0.0)
    row_SKW = torch.cat(
        [
            table_RD[hop.neighbor_SK.long()],
            features_EF[hop.event_SK.long()].to(table_RD.dtype),
            time_code(delta_SK, weight_T, bias_T),
        ],
        dim=2,
    )
    row_SKW = row_SKW.masked_fill(~used_SK.unsqueeze(2), 0.0)
    score_HSK = torch.einsum("hsw,skw->hsk", query_HSW, row_SKW)
    score_HSK = score_HSK.masked_fill(~used_SK, float("-inf"))
    empty_S1 = (hop.count_S == 0).unsqueeze(1)
    attention_HSK = torch.softmax(score_HSK.masked_fill(empty_S1, 0.0), dim=2)
    attention_HSK = attention_HSK.masked_fill(~used_SK, 0.0)
    if keep_SKH is not None:
        attention_HSK = attention_HSK * keep_SKH.permute(2, 0, 1)
    return torch.einsum("hsk,skw->hsw", attention_HSK, row_SKW)


def memory_inputs(
    memory_UD: Tensor,
    partner_UD: Tensor,
    mail: Mail,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
) -> Tensor:
    """[own memory ; partner's memory ; mean event features ; mean time code] of nodes with mail."""
    row_M = mail.row_M.long()
    mails_M = (mail.indptr_M1[1:] - mail.indptr_M1[:-1]).clamp(min=1)
    # Mails beyond the last border are padding, and may hold anything: replaced, as slots are.
    L = len(mail.event_L)
    place_L = torch.arange(L, dtype=torch.int32, device=row_M.device)
    used_L = place_L < mail.indptr_M1[-1]
    owner_L = torch.searchsorted(mail.indptr_M1[1:].contiguous(), place_L, right=True)
    owner_L = owner_L.clamp(max=len(row_M) - 1)
    delta_L = mail.delta_L.masked_fill(~used_L, 0.0)
    part_LX = torch.cat(
        [
            features_EF[mail.event_L.long()].to(memory_UD.dtype),
            time_code(delta_L, weight_T, bias_T),
        ],
        dim=1,
    )
    part_LX = part_LX.masked_fill(~used_L.unsqueeze(1), 0.0)
    total_MX = part_LX.new_zeros(len(row_M), part_LX.shape[1]).index_add(0, owner_L, part_LX)
    return torch.cat(
        [memory_UD[row_M], partner_UD[row_M], total_MX / mails_M.unsqueeze(1)],
        dim=1,
    )


def memory_update(
    cell: str,
    memory_UD: Tensor,
    partner_UD: Tensor,
    mail: Mail,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
) -> Tensor:
    """Memory after the pending messages; nodes without mail keep theirs (TGN, section 3.1)."""
    row_M = mail.row_M.long()
    input_MI = memory_inputs(memory_UD, partner_UD, mail, features_EF, weight_T, bias_T)
    memory_MD = memory_UD[row_M]
    function = torch.gru_cell if cell == "gru" else torch.rnn_tanh_cell
    updated_MD = function(input_MI, memory_MD, weight_ih, weight_hh, bias_ih, bias_hh)
    return memory_UD.index_copy(0, row_M, updated_MD)


def _segment_of_edges(indptr_S1: Tensor) -> Tensor:
    """[M], the segment of each edge."""
    segments_S = torch.arange(len(indptr_S1) - 1, device=indptr_S1.device)
    return torch.repeat_interleave(segments_S, torch.diff(indptr_S1).long())


def edge_softmax(score_MH: Tensor, indptr_S1: Tensor) -> Tensor:
    """Softmax over the edges of each segment, head by head."""
    segment_M = _segment_of_edges(indptr_S1)
    empty_SH = score_MH.new_zeros(len(indptr_S1) - 1, score_MH.shape[1])
    index_MH = segment_M.unsqueeze(1).expand_as(score_MH)
    largest_SH = empty_SH.scatter_reduce(0, index_MH, score_MH.detach(), "amax", include_self=False)
    term_MH = torch.exp(score_MH - largest_SH[segment_M])
    return term_MH / empty_SH.index_add(0, segment_M, term_MH)[segment_M]


def segment_sum(weight_MH: Tensor, table: Tensor, column_M: Tensor, indptr_S1: Tensor) -> Tensor:
    """[S, H, d]: sum over each segment's edges of weight times the table row the edge names."""
    table_RGd = table.unsqueeze(1) if table.ndim == 2 else table
    row_MHd = weight_MH.unsqueeze(2) * table_RGd[column_M.long()]
    empty_SHd = row_MHd.new_zeros(len(indptr_S1) - 1, *row_MHd.shape[1:])
    return empty_SHd.index_add(0, _segment_of_edges(indptr_S1), row_MHd)


def segment_attention(
    query_HSW: Tensor,
    table_RD: Tensor,
    neighbor_M: Tensor,
    event_M: Tensor,
    delta_M: Tensor,
    indptr_S1: Tensor,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    keep_MH: Tensor | None = None,
) -> Tensor:
    """`temporal_attention` over edges sorted by seed, any number of them per seed."""
    segment_M = _segment_of_edges(indptr_S1)
    row_MW = torch.cat(
        [
            table_RD[neighbor_M.long()],
            features_EF[event_M.long()].to(table_RD.dtype),
            time_code(delta_M, weight_T, bias_T),
        ],
        dim=1,
    )
    score_MH = torch.einsum("hmw,mw->mh", query_HSW[:, segment_M], row_MW)
    attention_MH = edge_softmax(score_MH, indptr_S1)
    if keep_MH is not None:
        attention_MH = attention_MH * keep_MH
    empty_SHW = row_MW.new_zeros(query_HSW.shape[1], query_HSW.shape[0], row_MW.shape[1])
    part_MHW = attention_MH.unsqueeze(2) * row_MW.unsqueeze(1)
    return empty_SHW.index_add(0, segment_M, part_MHW).transpose(0, 1)
