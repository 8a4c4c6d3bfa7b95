"""Several hops against brute force: each hop asks at its edge's time, under the same rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from history.brute import build, check_rows, eligible, random_case, streams
from tidegraph.errors import SettingError
from tidegraph.history import sample_hops


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_hops_equal_brute_force(data: st.DataObject) -> None:
    stream = data.draw(streams(floats=False))
    if not stream.source:
        return
    roots = data.draw(st.integers(1, 4))
    nodes = data.draw(
        st.lists(st.integers(0, stream.num_nodes - 1), min_size=roots, max_size=roots)
    )
    times = np.array([stream.time[-1]] * roots)
    inclusive = data.draw(st.booleans())
    window = data.draw(st.sampled_from([None, 1, 4]))
    limit = data.draw(st.sampled_from([None, 3, 20]))
    fanouts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    hops = sample_hops(
        build(stream),
        nodes,
        times,
        fanouts,
        inclusive=inclusive,
        window=window,
        before_event=limit,
    )
    asked = [(node, time, limit) for node, time in zip(nodes, times.tolist(), strict=True)]
    for k, found in zip(fanouts, hops, strict=True):
        expected, following = [], []
        for node, time, before in asked:
            row = []
            if node >= 0:
                row = eligible(
                    stream, node, time, window=window, inclusive=inclusive, before_event=before
                )[-k:]
            expected.append(row)
            following += [(n, t, e if inclusive else limit) for t, e, n in row]
            following += [(-1, 0, -1)] * (k - len(row))
        check_rows(found, expected, [time for _, time, _ in asked])
        asked = following


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, 2]])
def test_uniform_hops_do_not_depend_on_how_roots_are_split(fanouts: list[int]) -> None:
    index, nodes, times = random_case(40)
    slots = np.arange(40)
    whole = sample_hops(index, nodes, times, fanouts, strategy="uniform", key=1)
    for s in range(40):
        part = slice(s, s + 1)
        alone = sample_hops(
            index, nodes[part], times[part], fanouts, strategy="uniform", key=1, slot_S=slots[part]
        )
        width = alone[0].neighbor_SK.shape[1]
        np.testing.assert_array_equal(alone[0].event_SK[0], whole[0].event_SK[s, :width])
        row = s * whole[0].neighbor_SK.shape[1]
        np.testing.assert_array_equal(alone[1].event_SK, whole[1].event_SK[row : row + width])


def test_no_fanout_is_refused() -> None:
    index, nodes, times = random_case(2)
    with pytest.raises(SettingError, match="fanouts is empty"):
        sample_hops(index, nodes, times, [])
