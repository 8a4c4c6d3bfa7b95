"""Chronological parts: borders, ties, hidden nodes, windows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tidegraph.errors import InputError, SettingError
from tidegraph.events import EventRange, Events
from tidegraph.events.units import NANOSECONDS


def at(times: list[int] | list[float], unit: str | None = None) -> Events:
    """Events 0 -> 1 at the given times."""
    return Events.from_arrays([0] * len(times), [1] * len(times), times, time_unit=unit)


def test_i39_ties_at_the_border_stay_with_the_earlier_part() -> None:
    #   t  0 0 0 0 | 1
    train, val, test = at([0, 0, 0, 0, 1]).split(val=0.25, test=0.0)
    assert (len(train), len(val), len(test)) == (4, 1, 0)
    assert train.time.tolist() == [0, 0, 0, 0]


def test_i40_border_inside_a_tie() -> None:
    #   rows 3 1 2 2 2 4   sorted 1 2 2 2 | 3 4
    events = at([3, 1, 2, 2, 2, 4])
    split = events.split(val=0.5, test=0.0)
    assert split.train.time.tolist() == [1, 2, 2, 2]
    assert split.val.time.tolist() == [3, 4]
    assert "earlier part" in split.tie_rule
    rows = events.split(val=0.5, test=0.0, ties="row")
    assert rows.train.time.tolist() == [1, 2, 2]
    assert events.row[: len(rows.train)].tolist() == [1, 2, 3]


@given(
    st.lists(st.integers(-20, 20), min_size=2, max_size=60),
    st.sampled_from([0.0, 0.1, 0.15, 0.25]),
    st.sampled_from([0.15, 0.3]),
    st.sampled_from([("events", "together"), ("events", "row"), ("time", "together")]),
)
def test_i40_parts_are_disjoint_complete_and_ordered(
    times: list[int], val: float, test: float, how: tuple[str, str]
) -> None:
    by, ties = how
    events = at(times)
    try:
        split = events.split(val=val, test=test, by=by, ties=ties)  # type: ignore[arg-type]
    except InputError:  # few distinct times: no part may be given that is empty
        reject()
    assert [split.train.start, split.test.stop] == [0, len(events)]
    assert split.train.stop == split.val.start
    assert split.val.stop == split.test.start
    parts = [part for part in split if len(part)]
    for first, second in pairwise(parts):
        if ties == "together":
            assert first.time[-1] < second.time[0]
        assert first.time[-1] <= second.time[0]


@given(st.lists(st.integers(0, 1000), min_size=10, max_size=80))
def test_default_is_the_quantile_split(times: list[int]) -> None:
    events = at(times)
    first, second = np.quantile(np.sort(times), [0.70, 0.85])
    sizes = [
        int((events.time <= first).sum()),
        int(((events.time > first) & (events.time <= second)).sum()),
        int((events.time > second).sum()),
    ]
    if 0 in sizes:
        with pytest.raises(InputError, match="would be empty"):
            events.split()
    else:
        assert [len(part) for part in events.split()] == sizes


def test_i20_borders_are_exact_for_nanoseconds() -> None:
    start = 1_700_000_000_000_000_000
    events = at([start, start + 1, start + 2, start + 3])
    train, val, test = events.split(val_time=start + 1, test_time=start + 2)
    assert [len(train), len(val), len(test)] == [2, 1, 1]
    assert len(events.split(val=0.5, test=0.0, by="time").train) == 2


def test_by_time_uses_the_span() -> None:
    #   t 0 1 2 3 ........ 10     the middle of the span is 5
    train, val, _ = at([0, 1, 2, 3, 10]).split(val=0.5, test=0.0, by="time")
    assert (len(train), len(val)) == (4, 1)


def test_borders_as_iso_text() -> None:
    events = at([0, 3600, 7200, 10800], unit="s")
    train, val, test = events.split(
        val_time="1970-01-01T01:00:00", test_time="1970-01-01 03:00+01:00"
    )
    assert [len(train), len(val), len(test)] == [2, 1, 1]
    with pytest.raises(SettingError, match="no known unit"):
        at([0, 1, 2]).split(val_time="1970-01-01", test_time="1970-01-02")
    with pytest.raises(SettingError, match="is later than"):
        events.split(val_time=7200, test_time=3600)


def test_i41_no_training_event_touches_a_hidden_node() -> None:
    generator = np.random.default_rng(0)
    events = Events.from_arrays(
        generator.integers(0, 30, 500), generator.integers(30, 60, 500), np.arange(500)
    )
    split = events.split(hidden_nodes=0.2, seed=3)
    hidden = split.hidden_nodes
    assert hidden is not None
    later = np.unique(np.concatenate([events.source[350:], events.target[350:]]))
    assert hidden.sum() == round(0.2 * len(later))
    assert np.isin(np.flatnonzero(hidden), later).all()
    kept = split.train.kept()
    expected = [i for i in range(350) if not hidden[events.source[i]] | hidden[events.target[i]]]
    assert kept.tolist() == expected
    assert split.test.kept().tolist() == list(range(split.test.start, split.test.stop))
    new = split.test.touches(hidden)
    assert new.tolist() == (hidden[split.test.source] | hidden[split.test.target]).tolist()


def test_i41_hidden_nodes_depend_on_the_seed_alone() -> None:
    events = Events.from_arrays(np.arange(100) % 40, 40 + np.arange(100) % 37, np.arange(100))
    first, again, other = (events.split(hidden_nodes=0.1, seed=s).hidden_nodes for s in (1, 1, 2))
    assert first is not None
    assert np.array_equal(first, again)  # type: ignore[arg-type]
    assert not np.array_equal(first, other)  # type: ignore[arg-type]


def test_i41_small_case() -> None:
    #   train 0-1 8-2 0-2 | val 1-2 | test 0-1 8-1 8-9     hidden 8 and 9
    events = Events.from_arrays([0, 8, 0, 1, 0, 8, 8], [1, 2, 2, 2, 1, 1, 9], range(7))
    hidden = np.zeros(10, bool)
    hidden[[8, 9]] = True
    assert EventRange(events, 0, 3, "train", hidden).kept().tolist() == [0, 2]
    assert events.range(4, 7, "test").touches(hidden).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val": 0.6, "test": 0.5}, "leave no training part"),
        ({"by": "node"}, "expected 'events' or 'time'"),
        ({"ties": "split"}, "expected 'together' or 'row'"),
        ({"by": "time", "ties": "row"}, "has no effect"),
        ({"hidden_nodes": 1.0}, "share from 0 to below 1"),
        ({"hidden_nodes": 0.01}, "is none"),
        ({"val_time": 3}, "both val_time and test_time"),
        ({"val_time": float("nan"), "test_time": 5}, "val_time is nan; expected a finite number"),
    ],
)
def test_impossible_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        at(list(range(20))).split(**options)  # type: ignore[arg-type]


def test_i21_weeks_of_days() -> None:
    days = [0, 6, 7, 13, 30]
    windows = list(at(days, unit="d").snapshots(1, unit="w"))
    assert [int(window.start_time) // 7 for window in windows] == [0, 1, 4]
    assert [window.time.tolist() for window in windows] == [[0, 6], [7, 13], [30]]


def test_i21_no_unit_no_guess() -> None:
    with pytest.raises(InputError, match="unit of the time column is not known"):
        at([1, 2]).snapshots(1, unit="w")


def test_i22_empty_windows_keep_their_number() -> None:
    events = at([1000, 1010, 1500])
    skipped = list(events.snapshots(100))
    assert [window.index for window in skipped] == [0, 5]
    assert [window.start_time for window in skipped] == [1000, 1500]
    full = list(events.snapshots(100, empty="yield"))
    assert [window.index for window in full] == [0, 1, 2, 3, 4, 5]
    assert [len(window) for window in full] == [2, 0, 0, 0, 0, 1]


def test_i59_empty_window_policies() -> None:
    events = at([0, 10])
    assert len(list(events.snapshots(1))) == 2
    assert len(list(events.snapshots(1, empty="yield"))) == 11
    with pytest.raises(InputError, match="no event in the window from 1 to 2"):
        list(events.snapshots(1, empty="raise"))


def test_windows_must_fit_integer_times() -> None:
    with pytest.raises(SettingError, match="whole number"):
        at([0, 10], unit="s").snapshots(1500, unit="ms")
    with pytest.raises(SettingError, match="above 0"):
        at([0, 10]).snapshots(0)


@given(
    st.lists(st.integers(-100, 100), min_size=1, max_size=50),
    st.integers(1, 30),
    st.sampled_from(["skip", "yield"]),
)
def test_windows_partition_the_events(times: list[int], every: int, empty: str) -> None:
    events = at(times)
    windows = list(events.snapshots(every, empty=empty))  # type: ignore[arg-type]
    assert np.concatenate([window.time for window in windows]).tolist() == sorted(times)
    for window in windows:
        assert ((window.time >= window.start_time) & (window.time < window.stop_time)).all()
        assert window.start_time % every == 0


def test_units_are_multiples() -> None:
    assert NANOSECONDS["w"] == 7 * NANOSECONDS["d"]
