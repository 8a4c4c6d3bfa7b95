"""CAWN: causal anonymous walks from both nodes of a pair, read by a recurrent network.

Wang et al., "Inductive Representation Learning in Temporal Networks via Causal Anonymous Walks"
(ICLR 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from tidegraph.batches.beside import WalkPlan
from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import check_counts, check_dropout
from tidegraph.models.layers import TimeCode
from tidegraph.models.pairs import Pairing, PairModel, counts_of
from tidegraph.models.tokens import event_rows, node_rows
from tidegraph.models.transformer import dropped, linear
from tidegraph.ops.products import product


@dataclass(frozen=True, eq=False)
class _Alone:
    """A seed's walks before they are compared with a partner's.

    gate_SMIG: what features and time codes add to the gates of both directions; used_SMI: which
    positions a walk has.
    """

    gate_SMIG: Tensor
    used_SMI: Tensor


class CAWN(PairModel):
    """Causal Anonymous Walk Network.

    From each node of a pair, `walks` walks of `steps` steps back in time, an event of age a drawn
    with probability proportional to exp(-bias a) (Algorithm 1). A walk's node w is told apart by
    where it stands in both nodes' walks alone: f(g(w, S_u)) + f(g(w, S_v)), g the share of walks
    that have w in each position and f two linear layers (eq. 1-2, 5). Position i reads that, its
    event's features, the node's features and Phi(time since the event before) (eq. 4); an LSTM in
    both directions reads the walk; an embedding is the projected mean over a node's walks.

    Walks belong to (node, time) and to the epoch: the same seed walks the same way wherever it
    stands in a batch, and evaluation always the same way.

    `embed` gives a node's embedding beside itself: its own walks on both sides.

    Args:
        schema: sizes of the data, `events.schema`.
        time: width of the time code.
        place: width of the encoded positions.
        hidden: width of the LSTM, each direction.
        embedding: width of the embeddings.
        walks: walks per node.
        steps: of a walk.
        bias: how much recent events are preferred, per time unit; 0: not at all.
        dropout: probability, on the encoded walks.
        time_code: "fixed" frequencies, or "trainable".
        inclusive: events at exactly the query time are history too.
        visibility: of events: up to each "event", or only earlier batches ("batch").

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> CAWN(Schema(num_nodes=4, num_sources=4, bipartite=False)).history.walks.count
    32
    """

    name: ClassVar[str] = "cawn"

    def __init__(
        self,
        schema: Schema,
        time: int = 100,
        place: int = 32,
        hidden: int = 32,
        embedding: int = 100,
        walks: int = 32,
        steps: int = 2,
        bias: float = 1e-6,
        dropout: float = 0.1,
        time_code: Literal["fixed", "trainable"] = "fixed",
        inclusive: bool = False,
        visibility: Literal["event", "batch"] = "event",
    ) -> None:
        super().__init__(schema, embedding)
        check_counts(time=time, place=place, hidden=hidden, walks=walks, steps=steps)
        if not 0 <= bias < math.inf:
            raise SettingError(f"bias={bias}: expected a number per time unit, 0 or more")
        check_dropout(dropout)
        self.hidden, self.dropout = hidden, dropout
        self.history = History(
            neighbors=(),
            inclusive=inclusive,
            visibility=visibility,
            memory=False,
            walks=WalkPlan(walks, steps, bias),
        )
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        features = schema.node_features + schema.event_features + time
        gates = 8 * hidden  # four gates, two directions
        self.place_in = nn.Linear(steps + 1, place)
        self.place_out = nn.Linear(place, place)
        self.feature_gates = nn.Linear(features, gates)
        self.place_gates = nn.Linear(place, gates, bias=False)
        self.recurrent = nn.Parameter(torch.empty(2, hidden, 4 * hidden))
        nn.init.uniform_(self.recurrent, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        self.result = nn.Linear(2 * hidden, embedding)

    def alone(self, batch: PreparedBatch) -> _Alone:
        """Gates from node features, event features and time codes, one row per position."""
        walks, like = batch.walks, self.result.weight
        assert walks is not None
        S, M, L = walks.node_SML.shape
        place_L = torch.arange(L, device=walks.length_SM.device)
        used_SML = place_L < walks.length_SM.unsqueeze(2)
        used_SMI = torch.cat([used_SML.new_ones(S, M, 1), used_SML], dim=2)

        def after_root(value_SML: Tensor, root_S11: Tensor | int) -> Tensor:
            value_SML = value_SML.masked_fill(~used_SML, 0)
            root_SM1 = value_SML.new_zeros(S, M, 1) + root_S11
            return torch.cat([root_SM1, value_SML], dim=2)

        row_SMI = after_root(walks.node_SML, walks.self_S[:, None, None]).long()
        event_SMI = after_root(walks.event_SML, 0).long()
        of_event_SMI = used_SMI.clone()
        of_event_SMI[..., 0] = False  # the root is no event
        part_SMIX = torch.cat(
            [
                node_rows(batch, like)[row_SMI],
                event_rows(batch, event_SMI, of_event_SMI, like),
                self.time_code(after_root(walks.delta_SML, 0)),
            ],
            dim=3,
        )
        return _Alone(linear(self.feature_gates, part_SMIX), used_SMI)

    def beside(self, batch: PreparedBatch, alone: _Alone, pairing: Pairing) -> Tensor:
        """[P, 2, D]."""
        assert batch.walks is not None
        walks, like = batch.walks, self.result.weight
        own, other = counts_of(walks.own_SMII.to(like), walks.across_P2MII.to(like), pairing)
        P, _, M, positions, _ = own.shape
        seed_X = torch.stack([pairing.first_P, pairing.second_P], dim=1).flatten()
        # f is a sum over both sets; what follows its ReLU is linear and becomes one matrix.
        hidden = torch.relu(linear(self.place_in, own)) + torch.relu(linear(self.place_in, other))
        fold_pG = product(self.place_out.weight.t(), self.place_gates.weight.t())
        bias_G = self.place_gates.weight @ (2 * self.place_out.bias)
        gate_XMIG = product(hidden.flatten(0, -2), fold_pG, bias_G).view(2 * P, M, positions, -1)
        gate_XMIG = gate_XMIG + alone.gate_SMIG.index_select(0, seed_X)
        used_YI = alone.used_SMI.index_select(0, seed_X).flatten(0, 1)
        walk_YH = self._read(gate_XMIG.flatten(0, 1), used_YI)
        walk_YH = dropped(walk_YH, self.dropout if self.training else 0.0, pairing.key)
        return linear(self.result, walk_YH.view(2 * P, M, -1).mean(1)).view(P, 2, -1)

    def _read(self, gate_YIG: Tensor, used_YI: Tensor) -> Tensor:
        """[Y, 2 hidden]: what the LSTM knows at either end of each walk."""
        positions, H = gate_YIG.shape[1], self.hidden
        ends = []
        for direction, order in enumerate((range(positions), range(positions - 1, -1, -1))):
            part = slice(4 * H * direction, 4 * H * (direction + 1))
            hidden_YH = gate_YIG.new_zeros(len(gate_YIG), H)
            cell_YH = hidden_YH
            for place in order:
                gate_YG = gate_YIG[:, place, part] + product(hidden_YH, self.recurrent[direction])
                keep, take, give = torch.sigmoid(gate_YG[:, : 3 * H]).chunk(3, dim=1)
                fresh_YH = keep * cell_YH + take * torch.tanh(gate_YG[:, 3 * H :])
                used_Y1 = used_YI[:, place, None]
                cell_YH = torch.where(used_Y1, fresh_YH, cell_YH)
                hidden_YH = torch.where(used_Y1, give * torch.tanh(fresh_YH), hidden_YH)
            ends.append(hidden_YH)
        return torch.cat(ends, dim=1)
