"""What history says, written down event by event: the oracle of preparation.

Nothing here is vectorised, deduplicated or indexed. Every question is answered by a scan over all
streamed events, so each rule (strictly before, own event never, ties by event id, mail of the last
batch) stands in one line.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tidegraph.batches import History, PreparedBatch
from tiny import Stream

Tree = int | tuple  # a node, or (own tree, ((neighbor's tree, event, difference), ...))


def neighbors(
    stream: Stream,
    kept: list[int],
    history: History,
    node: int,
    time: float,
    k: int,
    before: int | None,
) -> list[tuple[int, int, float]]:
    """(partner, event, event time), oldest first: the last k of `node` before `time`."""
    found = []
    for event in kept:
        u, v, t = stream.source[event], stream.target[event], stream.time[event]
        if node not in (u, v):
            continue
        if not (t < time or (history.inclusive and t == time)):
            continue
        if before is not None and event >= before:
            continue
        if history.window is not None and time - t > history.window:
            continue
        found.append((v if node == u else u, event, t))
    return found[-k:]


def tree(
    stream: Stream,
    kept: list[int],
    history: History,
    node: int,
    time: float,
    depth: int,
    before: int | None,
) -> Tree:
    """The whole computation of one root: hop 2 is asked at the time of the hop-1 event."""
    if depth == 0:
        return node
    k = history.neighbors[-depth]
    below = []
    for partner, event, t in neighbors(stream, kept, history, node, time, k, before):
        # An event is no history of itself, at any depth.
        limit = event if history.inclusive else before
        inner = tree(stream, kept, history, partner, t, depth - 1, limit)
        below.append((inner, event, float(np.float32(time - t))))
    own = tree(stream, kept, history, node, time, depth - 1, before)
    return (own, tuple(below))


def expand(batch: PreparedBatch, depth: int, row: int) -> Tree:
    """The same value read back from a prepared batch; `depth` 0 is the table of unique nodes."""
    if depth == 0:
        return int(batch.node_U[row])
    hop = batch.hops[depth - 1]
    below = []
    for slot in range(int(hop.count_S[row])):
        inner = expand(batch, depth - 1, int(hop.neighbor_SK[row, slot]))
        event = int(batch.features[int(hop.event_SK[row, slot]), 0]) - 1
        below.append((inner, event, float(hop.delta_SK[row, slot])))
    return (expand(batch, depth - 1, int(hop.self_S[row])), tuple(below))


@dataclass
class MailLedger:
    """Pending mail, batch after batch: which events, and when each node was last updated.

    A node's mail is its events of the last batch it took part in (the latest, or all). When it
    takes part again, that mail is applied, and the node counts as updated at the mail's time.
    """

    stream: Stream
    history: History
    pending: dict[int, list[int]] = field(default_factory=dict)
    updated: dict[int, float] = field(default_factory=dict)

    def mail(self, node: int) -> list[tuple[int, float]]:
        """(event, float32 mail time minus last update) of each pending mail; may be empty."""
        last = self.updated.get(node, self.stream.time[0])
        return [
            (event, float(np.float32(self.stream.time[event] - last)))
            for event in self.pending.get(node, [])
        ]

    def execute(self, batch: list[int]) -> None:
        """Apply the endpoints' mail, then leave the batch's events as their new mail."""
        arrived: dict[int, list[int]] = {}
        for event in batch:
            for node in {self.stream.source[event], self.stream.target[event]}:
                arrived.setdefault(node, []).append(event)
        for node, events in arrived.items():
            if node in self.pending:
                self.updated[node] = self.stream.time[self.pending[node][-1]]
            self.pending[node] = events[-1:] if self.history.message == "last" else events

    def partners(self, node: int) -> list[int]:
        """Whose memory each pending mail carries."""
        result = []
        for event in self.pending.get(node, []):
            u, v = self.stream.source[event], self.stream.target[event]
            result.append(v if node == u else u)
        return result
