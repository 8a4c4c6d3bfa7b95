"""Feature stores read tables in place, mapped or not, and never change them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tidegraph.features import FeatureStore


def test_table_is_the_array_itself() -> None:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    store = FeatureStore.of(array)
    assert store.width == 2
    assert store.table.data_ptr() == array.ctypes.data
    assert np.array_equal(store.table.numpy(), array)


def test_no_features_still_have_a_row_for_padding() -> None:
    store = FeatureStore.of(None)
    assert store.width == 0
    assert store.table.shape == (1, 0)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_memory_mapped_file_is_read_in_place(tmp_path: Path, mode: str) -> None:
    array = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)  # type: ignore[call-overload]
    store = FeatureStore.of(mapped)
    assert store.table.data_ptr() == mapped.ctypes.data
    del mapped  # the store keeps the mapping alive
    assert np.array_equal(store.table.numpy(), array)
    assert np.array_equal(store.rows(np.array([49, 0, 49])).numpy(), array[[49, 0, 49]])


def test_rows_are_copies() -> None:
    array = np.ones((3, 2), np.float32)
    rows = FeatureStore.of(array).rows(np.array([0, 2], np.int32))
    rows[:] = 7.0
    assert (array == 1.0).all()


def test_no_rows() -> None:
    assert FeatureStore.of(np.ones((3, 2), np.float32)).rows(np.empty(0, np.int32)).shape == (0, 2)


@pytest.mark.parametrize("kind", [np.float64, np.int32, np.float16])
def test_other_types_and_layouts_become_float32(kind: type) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind).T
    store = FeatureStore.of(array)
    assert store.table.dtype == torch.float32
    assert store.table.is_contiguous()
    assert np.array_equal(store.table.numpy(), array.astype(np.float32))
