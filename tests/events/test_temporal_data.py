"""To and from `TemporalData`: values, types and shapes come back as they were."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegraph as tg
from tidegraph.events import Events, open_events


class Columns(dict[str, Any]):
    """What reading needs of a `TemporalData`: keys and items."""


def library() -> Any:
    return pytest.importorskip(
        "torch_geometric.data",
        reason="torch-geometric is not installed (pip install tidegraph[pyg])",
    )


def same(found: Any, expected: Any) -> None:
    """Equal keys, types, shapes and bits."""
    assert sorted(found.keys()) == sorted(expected.keys())
    for key in expected.keys():  # noqa: SIM118 (TemporalData iterates over itself)
        assert found[key].dtype == expected[key].dtype, key
        assert torch.equal(found[key], expected[key]), key


@st.composite
def columns(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    count = draw(st.integers(1, 12))
    node = st.integers(0, 5)

    def tensor(values: st.SearchStrategy[Any], kind: torch.dtype, *width: int) -> torch.Tensor:
        size = count * int(np.prod(width, dtype=int))
        drawn = draw(st.lists(values, min_size=size, max_size=size))
        return torch.tensor(drawn, dtype=kind).reshape(count, *width)

    small = st.floats(-8, 8, width=16)
    times = st.integers(-(2**62), 2**62)
    found = {"src": tensor(node, torch.int64), "dst": tensor(node, torch.int64)}
    if draw(st.booleans()):
        found["t"] = tensor(times, torch.int64).sort().values
    else:
        found["t"] = tensor(st.floats(-1e300, 1e300), torch.float64).sort().values
    if draw(st.booleans()):
        kind = draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
        value = st.integers(-9, 9) if kind == torch.int64 else small
        found["msg"] = tensor(value, kind, *draw(st.sampled_from([(), (1,), (3,)])))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([torch.float32, torch.int64, torch.bool]))
        found["y"] = tensor(st.integers(0, 1), kind, *draw(st.sampled_from([(), (1,), (2,)])))
    if draw(st.booleans()):
        found["kind"] = tensor(st.integers(0, 3), torch.int32)
        found["embedding"] = tensor(st.just(float("nan")) | small, torch.float64, 2, 2).nan_to_num()
    return found


class TestRoundTrip:
    @settings(max_examples=60, deadline=None)
    @given(columns())
    def test_from_temporal_data_and_back(self, given_columns: dict[str, torch.Tensor]) -> None:
        pyg = library()
        data = pyg.TemporalData(**given_columns)
        same(tg.from_temporal_data(data).to_temporal_data(), data)

    def test_to_temporal_data_and_back(self, tmp_path: Any) -> None:
        library()
        events = Events.from_arrays(
            [0, 1, 0, 1],
            [2, 3, 3, 2],
            np.array([3, 5, 5, 2**61], np.int64),
            features=np.arange(8).reshape(4, 2),
            label=[0, 1, 0, 0],
            weight=[0.5, 2, -1, 1],
            node_features=np.eye(4),
            time_unit="s",
            extra={"kind": np.array([3, 1, 2, 1], np.int16)},
        )
        for one in (events, events.save(tmp_path / "stored")):
            again = tg.from_temporal_data(
                one.to_temporal_data(), node_features=events.node_features, time_unit="s"
            )
            assert again.fingerprint == events.fingerprint
            assert again.extra["kind"].dtype == np.int16

    def test_a_library_data_set_survives_a_split(self) -> None:
        pyg = library()
        data = pyg.TemporalData(
            src=torch.arange(20) % 4, dst=torch.arange(20) % 3 + 4, t=torch.arange(20) * 10,
            msg=torch.randn(20, 3), y=torch.arange(20) % 2,
        )  # fmt: skip
        train, val, test = tg.from_temporal_data(data).split(val=0.2, test=0.2)
        expected = data.train_val_test_split(val_ratio=0.2, test_ratio=0.2)
        for part, other in zip((train, val, test), expected, strict=True):
            assert part.time.tolist() == other.t.tolist()


class TestReading:
    def test_columns_find_their_place(self) -> None:
        events = tg.from_temporal_data(
            Columns(
                src=torch.tensor([0, 1, 0]), dst=torch.tensor([2, 3, 3]),
                t=torch.tensor([1, 2, 3]), msg=torch.tensor([[1.0], [2.0], [3.0]]),
                y=torch.tensor([0, 1, 1]), kind=torch.tensor([5, 6, 7]),
            )
        )  # fmt: skip
        assert events.features is not None
        assert events.label is not None
        assert events.features.tolist() == [[1], [2], [3]]
        assert events.label.tolist() == [0, 1, 1]
        assert events.extra["kind"].tolist() == [5, 6, 7]
        assert events.extra["y"].dtype == np.int64  # kept, since labels are float32
        assert events.schema.bipartite

    def test_rows_out_of_order_are_sorted_with_all_their_columns(self) -> None:
        events = tg.from_temporal_data(
            Columns(src=np.array([0, 1, 2]), dst=np.array([1, 2, 0]), t=np.array([30, 10, 20]),
                    msg=np.array([[3.0], [1.0], [2.0]], np.float32), kind=np.array([3, 1, 2]))
        )  # fmt: skip
        assert events.row.tolist() == [1, 2, 0]
        assert events.extra["kind"].tolist() == [1, 2, 3]
        assert events.features is not None
        assert events.features.tolist() == [[1], [2], [3]]

    def test_times_beyond_float_precision(self) -> None:
        first = 1_700_000_000_000_000_000
        data = Columns(src=np.array([0, 0]), dst=np.array([1, 1]), t=np.array([first, first + 1]))
        assert tg.from_temporal_data(data).time.tolist() == [first, first + 1]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"t": None}, "t has shape"),
            ({"x": torch.ones(5, 2)}, "x has shape (5, 2); expected one row for each of the 2"),
            ({"src": torch.tensor([0.5, 1])}, "source has shape (2,) and type float32"),
            ({"src": torch.tensor([0, -1])}, "source in row 2 is -1"),
            ({"msg": torch.tensor([[1.0], [float("nan")]])}, "features in row 2 is nan"),
            ({"t": torch.tensor([1.0, float("inf")])}, "time in row 2 is inf"),
            ({"msg": torch.ones(2, 1, dtype=torch.bfloat16)}, "msg has type torch.bfloat16"),
            ({"a-b": torch.ones(2)}, "extra column 'a-b': expected a name of letters"),
        ],
    )
    def test_what_cannot_be_used(self, change: dict[str, Any], message: str) -> None:
        data = Columns(src=torch.tensor([0, 1]), dst=torch.tensor([1, 0]), t=torch.tensor([1, 2]))
        data.update(change)
        if change.get("t", 0) is None:
            data["t"], message = torch.tensor(3), "src has shape (2,); expected one row"
        with pytest.raises(tg.InputError) as found:
            tg.from_temporal_data(data)
        assert message in str(found.value)

    @pytest.mark.parametrize("value", [Columns(src=torch.tensor([0])), 3, [1, 2]])
    def test_something_else(self, value: Any) -> None:
        with pytest.raises(tg.InputError, match="expected a torch_geometric TemporalData"):
            tg.from_temporal_data(value)


def test_without_the_library_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(tg.TidegraphError, match="pip install torch-geometric"):
        Events.from_arrays([0], [1], [2]).to_temporal_data()


class TestExtraColumns:
    def test_are_stored_and_part_of_the_fingerprint(self, tmp_path: Any) -> None:
        plain = Events.from_arrays([0, 1], [1, 0], [1, 2])
        kept = Events.from_arrays([0, 1], [1, 0], [1, 2], extra={"kind": [1, 2]})
        other = Events.from_arrays([0, 1], [1, 0], [1, 2], extra={"kind": [1, 3]})
        assert len({one.fingerprint for one in (plain, kept, other)}) == 3
        stored = kept.save(tmp_path / "e")
        assert stored.fingerprint == kept.fingerprint
        opened = open_events(tmp_path / "e", verify=True)
        assert opened.extra["kind"].tolist() == [1, 2]
        assert open_events(plain.save(tmp_path / "p").path or "").extra == {}

    def test_are_appended_and_must_agree(self) -> None:
        first = Events.from_arrays([0], [1], [1], extra={"kind": [1]})
        later = Events.from_arrays([0], [1], [2], extra={"kind": [7]})
        assert first.concatenate(later).extra["kind"].tolist() == [1, 7]
        with pytest.raises(tg.InputError, match="extra column kind differs"):
            first.concatenate(Events.from_arrays([0], [1], [2]))
