"""No look-ahead: nothing at or after a query's time changes its score, its own event included.

Two kinds of evidence. Where a change leaves all shapes as they are (other features), scores must
be equal bit for bit in the precision of training. Where it does not (an event more or
less), the matrix products may block the same sums differently, so the model runs in float64 and
scores must agree to 1e-12. That a real leak would be far larger is tested as well: changing one
event before the query moves its score.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from every import candidate_scores, rewrite

VARIANTS: list[dict[str, Any]] = [
    {"layers": 1},
    {"layers": 2, "message": "mean"},
    {"layers": 2, "inclusive": True},
    {"layers": 2, "visibility": "batch"},
    {"layers": 1, "inclusive": True, "visibility": "batch", "cell": "rnn"},
    {"layers": 2, "strategy": "uniform", "neighbors": 2},
]
variants = st.sampled_from(VARIANTS)


@given(
    stream=tiny.streams(most_events=18),
    options=variants,
    batch_size=st.integers(1, 7),
    position=st.integers(0, 17),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=25, deadline=None)
def test_nothing_at_or_after_the_query_changes_its_scores(
    stream: tiny.Stream, options: dict[str, Any], batch_size: int, position: int, seed: int
) -> None:
    stream = replace(stream, feature_width=0)
    event = position % len(stream)
    model = tiny.tgn(stream, **options)
    other, moved = rewrite(
        stream, np.random.default_rng(seed), event, batch_size, model.history.inclusive
    )
    before = candidate_scores(stream, model, batch_size, event)
    after = candidate_scores(other, model, batch_size, moved)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


@given(
    stream=tiny.streams(most_events=18),
    options=variants,
    batch_size=st.integers(1, 7),
    position=st.integers(0, 17),
    target=st.integers(0, 5),
)
@settings(max_examples=25, deadline=None)
def test_a_score_does_not_depend_on_whether_its_own_edge_exists(
    stream: tiny.Stream, options: dict[str, Any], batch_size: int, position: int, target: int
) -> None:
    """Give the event another target: each candidate's score stays; and a node scores the same as
    the true target and as a candidate."""
    event, target = position % len(stream), target % stream.num_nodes
    model = tiny.tgn(stream, **options)
    targets = list(stream.target)
    targets[event] = target
    before = candidate_scores(stream, model, batch_size, event)
    after = candidate_scores(replace(stream, target=targets), model, batch_size, event)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-12)
    for scores, node in ((before, stream.target[event]), (after, target)):
        torch.testing.assert_close(scores[0], scores[1 + node], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_features_of_the_event_and_of_later_ones_change_no_bit(options: dict[str, Any]) -> None:
    stream = tiny.random_stream(0, 30, nodes=5)
    model = tiny.tgn(stream, **options).float()
    for event in range(18, 24):
        original, changed = stream.events(), stream.events()
        assert original.features is not None
        features = original.features.copy()
        features[event:] = 9.0
        object.__setattr__(changed, "features", features)
        rows = [
            tiny.scores(model, tiny.preparer(events, model.history, 6))[event // 6][event % 6]
            for events in (original, changed)
        ]
        assert torch.equal(rows[0], rows[1])


def test_the_next_event_may_differ_but_not_this_one() -> None:
    """I37: two streams that are equal up to event 10; event 11 differs."""
    stream = tiny.random_stream(1, 14, nodes=5)
    targets = list(stream.target)
    targets[11] = (targets[11] + 1) % 5
    other = replace(stream, target=targets)
    for batch_size in (1, 4):
        model = tiny.tgn(stream)
        same = [candidate_scores(s, model, batch_size, 11)[1:] for s in (stream, other)]
        torch.testing.assert_close(same[0], same[1], rtol=0, atol=1e-12)
        # Event 12 follows in another batch (or sees 11 as a neighbour): it may know.
        source = list(stream.source)
        source[12] = stream.target[11]
        later = [replace(s, source=source) for s in (stream, other)]
        differ = [candidate_scores(s, model, batch_size, 12)[1:] for s in later]
        assert not torch.allclose(differ[0], differ[1], atol=1e-6)


def test_an_event_before_the_query_does_change_its_score() -> None:
    """What the tests above look for would be visible: the smallest change of the past is."""
    stream = tiny.random_stream(2, 20, nodes=4)
    model = tiny.tgn(stream)
    before = candidate_scores(stream, model, 5, 17)
    seen = 0
    for event in range(17):
        targets = list(stream.target)
        targets[event] = (targets[event] + 1) % 4
        after = candidate_scores(replace(stream, target=targets), model, 5, 17)
        seen += int(float((after - before)[1:].abs().max()) > 1e-6)
    assert seen >= 12


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_a_count_of_neighbors_does_not_tell_the_label(inclusive: bool, batch_size: int) -> None:
    """Pitfall 3: 1 and 2 have the same history and both meet 0's event time; whichever of them is
    the true target, the two scores are equal.

        0, 1, 2 met 3 twice each; then (0, 1) or (0, 2)
    """
    history = [(0, 3, 1), (1, 3, 2), (2, 3, 2), (0, 3, 3), (1, 3, 4), (2, 3, 4)]
    for target in (1, 2):
        u, v, t = zip(*history, (0, target, 9), strict=True)
        stream = tiny.Stream(list(u), list(v), list(t), 4, feature_width=0)
        # Memory of 1 and 2 differs by what 3 was when they met: window and width keep only the
        # neighbour counts. Zero memory weights make all memories equal.
        model = tiny.tgn(stream, neighbors=2, inclusive=inclusive)
        with torch.no_grad():
            for parameter in model.memory_cell.parameters():
                parameter.zero_()
        scores = candidate_scores(stream, model, batch_size, 6)
        torch.testing.assert_close(scores[1 + 1], scores[1 + 2], rtol=0, atol=1e-12)
        torch.testing.assert_close(scores[0], scores[1 + 1], rtol=0, atol=1e-12)
