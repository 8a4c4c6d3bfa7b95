"""The stores of a stream: large mapped tables are encoded once, into the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tidegraph.errors import InputError
from tidegraph.events import Events, open_events
from tidegraph.features import FEATURE_TYPES, FeatureStore, open, open_stores


def events(features: np.ndarray | None = None) -> Events:
    """30 events among 6 sources and 4 targets; nodes 5 and 9 come last."""
    place = np.arange(30)
    source, target = place % 5, 6 + place % 3
    source[29], target[29] = 5, 9
    if features is None:
        features = np.random.default_rng(4).normal(size=(30, 3)).astype(np.float32)
    nodes = np.random.default_rng(5).normal(size=(10, 2)).astype(np.float32)
    return Events.from_arrays(source, target, place, features=features, node_features=nodes)


@pytest.mark.parametrize("dtype", FEATURE_TYPES)
def test_both_tables_are_stored_alike(dtype: str) -> None:
    stream = events()
    features, nodes = open_stores(stream, dtype)
    assert features.dtype == nodes.dtype == dtype
    for store, table in ((features, stream.features), (nodes, stream.node_features)):
        assert table is not None
        off = np.abs(store.rows(np.arange(len(table))).numpy().astype(float) - table)
        assert (off <= store.error_F).all()


def test_small_tables_are_encoded_in_memory(tmp_path: Path) -> None:
    stored = events().save(tmp_path / "events")
    open_stores(stored, "int8", directory=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_large_mapped_tables_are_encoded_once(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open, "IN_MEMORY_BELOW", 0)
    memory = events()
    stored = memory.save(tmp_path / "events")
    expected = open_stores(memory, dtype, fit=20, directory=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()  # this one is in memory anyway
    first = open_stores(stored, dtype, fit=20, directory=tmp_path / "cache")
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    assert len([path for path in made if path.name == "codes.npy"]) == 2
    second = open_stores(open_events(tmp_path / "events"), dtype, fit=20,
                         directory=tmp_path / "cache")  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == made
    for stores in (first, second):
        for store, other in zip(stores, expected, strict=True):
            assert torch.equal(store.table.view(torch.int8), other.table.view(torch.int8))


def test_another_range_or_content_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open, "IN_MEMORY_BELOW", 0)
    stored = events().save(tmp_path / "events")
    other = events(np.ones((30, 3), np.float32)).save(tmp_path / "other")
    cache = tmp_path / "cache"

    def count() -> int:
        return len([path for path in cache.iterdir() if path.name.startswith("event-")])

    for number, (stream, dtype, fit) in enumerate(
        [(stored, "int8", 20), (stored, "int8", 25), (stored, "bfloat16", 20), (other, "int8", 20)]
    ):
        open_stores(stream, dtype, fit=fit, directory=cache)
        assert count() == number + 1
    open_stores(stored, "bfloat16", fit=25, directory=cache)  # nothing is fitted
    assert count() == 4


def test_a_damaged_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open, "IN_MEMORY_BELOW", 0)
    stored = events().save(tmp_path / "events")
    open_stores(stored, "int8", directory=tmp_path / "cache")
    for path in (tmp_path / "cache").rglob("codes.npy"):
        path.write_bytes(path.read_bytes()[:-1])
    features, _ = open_stores(stored, "int8", directory=tmp_path / "cache")
    assert torch.equal(features.table, open_stores(events(), "int8")[0].table)


def test_later_events_and_nodes_change_no_earlier_code() -> None:
    """int8 ranges: of the first 20 events, and of the nodes that occur in them (not 5 and 9)."""
    plain = events()
    assert plain.features is not None
    assert plain.node_features is not None
    changed = plain.features.copy()
    changed[20:] *= 1e3
    other = events(changed)
    assert other.node_features is not None
    nodes = other.node_features.copy()
    nodes[[5, 9]] = 1e6
    other = Events.from_arrays(
        other.source, other.target, other.time, features=changed, node_features=nodes
    )
    before, after = open_stores(plain, "int8", fit=20), open_stores(other, "int8", fit=20)
    assert torch.equal(before[0].table[:20], after[0].table[:20])
    seen = [0, 1, 2, 3, 4, 6, 7, 8]
    assert torch.equal(before[1].rows(np.array(seen)), after[1].rows(np.array(seen)))
    assert after[0].clipped > 20
    assert after[1].clipped == 4
    assert after[1].error_F.max() > 9e5


def test_a_value_that_does_not_fit_is_named() -> None:
    features = np.zeros((30, 3), np.float32)
    features[7, 2] = 1e5
    with pytest.raises(InputError, match=r"event feature .* is 100000 in row 7"):
        open_stores(events(features), "float16")


def test_no_features() -> None:
    features, nodes = open_stores(Events.from_arrays([0], [1], [2]), "int8")
    assert features.width == nodes.width == 0
    assert isinstance(features, FeatureStore)
