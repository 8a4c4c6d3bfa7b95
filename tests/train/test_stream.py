"""Streams: which events form which batch, and which of them are anybody's history."""

from __future__ import annotations

import numpy as np
import pytest

from tidegraph.batches import History
from tidegraph.errors import SettingError
from tidegraph.events import Events
from tidegraph.train.stream import Part, Stream, part_of
from training import chatter

EVENTS = chatter()
HISTORY = History(neighbors=(100,))


def seen_by(stream: Stream, node: int, time: int) -> list[int]:
    """Ids of the events that a query may find."""
    found = stream.index.sample([node], np.asarray([time], stream.events.time.dtype), 1000)
    return found.event_SK[0, : found.count_S[0]].tolist()


def touching(events: Events, node: int) -> list[int]:
    return np.flatnonzero((events.source == node) | (events.target == node)).tolist()


@pytest.mark.parametrize("size", [1, 3, 4, 10, 20])
def test_each_event_is_in_exactly_one_batch(size):
    """Case I58: the last batch may be smaller, and every part has its own batch size."""
    parts = (Part("train", 0, 10, size), Part("val", 10, 13, 2), Part("test", 13, 20, 7))
    stream = Stream.open(EVENTS, parts, HISTORY)
    batches = [stream.plan.events(n).tolist() for n in range(len(stream.plan))]
    assert [event for batch in batches for event in batch] == list(range(20))
    assert [len(batches[n]) for n in stream.phase("val").batches] == [2, 1]
    assert [len(batches[n]) for n in stream.phase("test").batches] == [7]
    assert stream.stop == 20


def test_parts_out_of_order_and_unknown_phases_are_refused():
    with pytest.raises(SettingError, match="follow each other"):
        Stream.open(EVENTS, (Part("b", 10, 20, 5), Part("a", 0, 10, 5)), HISTORY)
    stream = Stream.open(EVENTS, (Part("train", 0, 10, 5),), HISTORY)
    with pytest.raises(SettingError, match=r"no phase 'test': it has \['train'\]"):
        stream.phase("test")


def test_another_part_leaves_the_stream_as_it_was():
    stream = Stream.open(EVENTS, (Part("train", 0, 10, 5),), HISTORY)
    longer = stream.with_part(Part("val", 10, 20, 5))
    assert [part.name for part in stream.parts] == ["train"]
    assert len(stream.plan) == 2
    assert [part.name for part in longer.parts] == ["train", "val"]
    assert longer.preparer.plan is longer.plan
    assert longer.index is stream.index


def test_hidden_training_events_are_nobodys_history():
    """Pitfall 7. They are in no batch, no neighbourhood and no mail; later events are."""
    split = EVENTS.split(val=0.2, test=0.13, ties="row", hidden_nodes=0.3)
    hidden = split.hidden_nodes
    parts = (part_of(split.train, 20, hide=True), part_of(split.val, 12))
    stream = Stream.open(EVENTS, parts, HISTORY, hidden_nodes=hidden)
    gone = np.flatnonzero(hidden[EVENTS.source[:80]] | hidden[EVENTS.target[:80]])
    assert len(gone) > 10
    planned = stream.plan.event_P.tolist()
    assert planned == sorted(set(range(104)) - set(gone.tolist()))
    for node in range(12):
        expected = [event for event in touching(EVENTS, node) if event not in gone]
        assert seen_by(stream, node, 10**6) == expected


def test_events_before_the_first_part_are_nobodys_history():
    """Training on the later half: the state has never seen the earlier, so neighbours have not.

        not streamed     train            val
    |0 ............ 39|40 ....... 69|70 ....... 79|
    """
    parts = (Part("train", 40, 70, 10), Part("val", 70, 80, 10))
    stream = Stream.open(EVENTS, parts, HISTORY)
    for node in range(12):
        expected = [event for event in touching(EVENTS, node) if event >= 40]
        assert seen_by(stream, node, 10**6) == expected
    first = stream.preparer.prepare(0, np.zeros((10, 1), np.int32))
    assert first.mail is not None
    assert len(first.mail.row_M) == 0, "mail of events that no batch has left"


def test_more_events_leave_what_was_streamed_as_it_was():
    """Online: the first 60 events and then the rest equal all of them at once."""
    first, rest = EVENTS.range(0, 60), EVENTS.range(60, 120)

    def alone(part: object) -> Events:
        start, stop = part.start, part.stop
        return Events.from_arrays(
            EVENTS.source[start:stop], EVENTS.target[start:stop], EVENTS.time[start:stop],
            features=EVENTS.features[start:stop], num_nodes=12, bipartite=False,
        )  # fmt: skip

    hidden = np.zeros(12, bool)
    hidden[3] = True
    stream = Stream.open(
        alone(first), (Part("train", 0, 60, 7, hidden=True),), HISTORY, hidden_nodes=hidden
    )
    grown = stream.with_events(alone(first).concatenate(alone(rest))).with_part(
        Part("predict", 60, 120, 10)
    )
    whole = Stream.open(
        EVENTS,
        (Part("train", 0, 60, 7, hidden=True), Part("predict", 60, 120, 10)),
        HISTORY,
        hidden_nodes=hidden,
    )
    assert grown.plan.event_P.tolist() == whole.plan.event_P.tolist()
    assert grown.plan.border_B1.tolist() == whole.plan.border_B1.tolist()
    for number in range(len(whole.plan)):
        negative = np.full((len(whole.plan.events(number)), 1), 5, np.int32)
        one, other = (s.preparer.prepare(number, negative) for s in (grown, whole))
        assert one.hops[0].neighbor_SK.tolist() == other.hops[0].neighbor_SK.tolist()
        assert one.hops[0].event_SK.tolist() == other.hops[0].event_SK.tolist()
        assert one.mail.event_L.tolist() == other.mail.event_L.tolist()
        assert one.mail.delta_L.tolist() == other.mail.delta_L.tolist()


def test_new_nodes_are_not_hidden():
    hidden = np.zeros(12, bool)
    hidden[3] = True
    stream = Stream.open(
        EVENTS, (Part("train", 0, 120, 20, hidden=True),), HISTORY, hidden_nodes=hidden
    )
    later = Events.from_arrays(
        [12, 13], [13, 3], [10**4, 10**4], features=np.zeros((2, 2)), bipartite=False
    )
    grown = stream.with_events(EVENTS.concatenate(later))
    assert np.flatnonzero(grown.hidden_nodes).tolist() == [3]
    assert len(grown.hidden_nodes) == 14
