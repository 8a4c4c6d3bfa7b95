"""What `describe` says, counted by hand and by brute force."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegraph.events import Events, read_table


def test_small_stream() -> None:
    #   rows: 0-2@5  0-2@1  1-3@5  0-2@5  1-1@9       (one repeat in full, one self-loop)
    events = Events.from_arrays(
        [0, 0, 1, 0, 1],
        [2, 2, 3, 2, 1],
        [5, 1, 5, 5, 9],
        label=[0, 0, 1, 0, 0],
        num_nodes=6,
        time_unit="h",
    )
    told = events.describe()
    assert (told.events, told.nodes, told.idle_nodes) == (5, 6, 2)
    assert (told.tied_events, told.largest_tie) == (3, 3)
    assert (told.exact_repeats, told.self_loops, told.rows_moved) == (1, 1, 1)
    assert told.repeated_pairs == 2 / 5
    assert told.span == "8.00 hours"
    assert told.degree == {"min": 1, "median": 2.5, "mean": 2.25, "p99": 3, "max": 3}
    assert told.label == "0 x 4, 1 x 1"
    text = str(told)
    assert "5 events, 6 nodes, 2 without events" in text
    assert "1 to 9, int64, unit h; span 8.00 hours" in text
    assert "1 rows were out of order; 3 events share a time (largest tie 3)" in text


def test_nothing_to_describe() -> None:
    told = Events.from_arrays([], [], []).describe()
    assert (told.events, told.exact_repeats, told.repeated_pairs, told.span) == (0, 0, 0, "none")
    assert "0 events" in str(told)


def test_unknown_unit_is_said() -> None:
    told = Events.from_arrays([0, 0], [1, 1], [3, 10]).describe()
    assert told.span == "7"
    assert "no unit given" in str(told)


def test_overlapping_integer_ids_are_pointed_out() -> None:
    table = {"u": [1, 2], "i": [2, 3], "t": [1, 2]}
    told = read_table(table, source="u", target="i", time="t").describe()
    assert "(1 appear on both sides)" in told.notes[0]
    assert "bipartite=True" in str(told)
    apart = read_table(table, source="u", target="i", time="t", bipartite=True).describe()
    assert apart.notes == ()
    assert (apart.nodes, apart.bipartite) == (4, True)


def test_plain_values_for_json() -> None:
    told = Events.from_arrays([0], [1], [2]).describe().to_dict()
    assert told["degree"]["max"] == 1
    assert told["notes"] == []


rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 5)), min_size=1)


@given(rows)
def test_counts_equal_brute_force(events_given: list[tuple[int, int, int]]) -> None:
    source, target, time = (np.array(column) for column in zip(*events_given, strict=True))
    told = Events.from_arrays(source, target, time, num_nodes=5).describe()
    whole, pairs = Counter(events_given), Counter((s, d) for s, d, _ in events_given)
    times = Counter(time.tolist())
    assert told.exact_repeats == sum(whole.values()) - len(whole)
    assert told.repeated_pairs == (len(events_given) - len(pairs)) / len(events_given)
    assert told.tied_events == sum(count for count in times.values() if count > 1)
    assert told.largest_tie == max(times.values())
    assert told.rows_moved == sum(a > b for a, b in pairwise(time.tolist()))
    degree = Counter(node for s, d, _ in events_given for node in {s, d})
    assert told.degree["max"] == max(degree.values())
    assert told.degree["min"] == min(degree.values())
    assert told.idle_nodes == 5 - len(degree)


def test_times_that_are_dates_are_shown_as_dates() -> None:
    first = 1_709_280_240
    told = str(Events.from_arrays([0, 0], [1, 1], [first, first + 90], time_unit="s").describe())
    assert (
        "2024-03-01 08:04:00 to 2024-03-01 08:05:30 UTC (1709280240 to 1709280330, int64, unit s)"
    ) in told
    assert "UTC" not in str(Events.from_arrays([0], [1], [first]).describe())
    assert "UTC" not in str(Events.from_arrays([0], [1], [90], time_unit="s").describe())
