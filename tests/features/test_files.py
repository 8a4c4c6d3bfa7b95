"""Encoded stores on disk: equal to those in memory, whole or not there, damage named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tidegraph.errors import InputError
from tidegraph.events.files import FileColumn
from tidegraph.features import FeatureStore

ENCODED = ("float16", "bfloat16", "int8")


def table(rows: int = 50) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)


@pytest.mark.parametrize("dtype", ENCODED)
def test_mapped_equals_in_memory(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegraph.features.encode.BLOCK_BYTES", 7 * 12)
    memory = FeatureStore.of(table(), dtype, fit=20)
    written = FeatureStore.of(table(), dtype, fit=20, directory=tmp_path / "a" / "store")
    opened = FeatureStore.open(tmp_path / "a" / "store", verify=True)
    for mapped in (written, opened):
        assert mapped.dtype == dtype
        assert torch.equal(mapped.rows(np.arange(50)), memory.rows(np.arange(50)))
        assert np.array_equal(mapped.error_F, memory.error_F)
        assert mapped.clipped == memory.clipped
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["store"]
    width = 1 if dtype == "int8" else 2
    assert (tmp_path / "a" / "store" / "codes.npy").stat().st_size == 128 + 50 * 3 * width


@pytest.mark.parametrize("dtype", ENCODED)
def test_an_existing_store_is_replaced(tmp_path: Path, dtype: str) -> None:
    before = FeatureStore.of(table(9), dtype, directory=tmp_path / "s")
    FeatureStore.of(table(), dtype, directory=tmp_path / "s")
    assert len(FeatureStore.open(tmp_path / "s").table) == 50
    nine = np.arange(9)  # the replaced file stays readable where it is open
    assert torch.equal(before.rows(nine), FeatureStore.of(table(9), dtype).rows(nine))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="holds something other than encoded features"):
        FeatureStore.of(table(), "int8", directory=tmp_path / "mine")
    assert (tmp_path / "mine" / "manifest.json").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_nothing_stays_after_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FeatureStore.of(table(9), "int8", directory=tmp_path / "s")

    def full(self: object, piece: np.ndarray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileColumn, "append", full)
    for name in ("s", "new"):
        with pytest.raises(InputError, match=r"could not be written .No space left on device"):
            FeatureStore.of(table(), "int8", directory=tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert len(FeatureStore.open(tmp_path / "s", verify=True).table) == 9


def test_a_refused_value_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="float16 holds"):
        FeatureStore.of(table() + 7e4, "float16", directory=tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_damage_is_named(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with pytest.raises(InputError, match="no manifest of encoded features"):
        FeatureStore.open(place)
    FeatureStore.of(table(), "bfloat16", directory=place)
    codes = place / "codes.npy"
    whole = codes.read_bytes()
    codes.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"codes\.npy: has 427 bytes, expected 428"):
        FeatureStore.open(place)
    codes.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    FeatureStore.open(place)
    with pytest.raises(InputError, match=r"codes\.npy: its content does not match"):
        FeatureStore.open(place, verify=True)
    codes.unlink()
    with pytest.raises(InputError, match=r"codes\.npy: missing; restore it or delete"):
        FeatureStore.open(place)


@pytest.mark.parametrize(
    "change", [{"version": 9}, {"dtype": "int4"}, {"files": {}}, {"format": 1}]
)
def test_a_foreign_manifest_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    FeatureStore.of(table(), "int8", directory=tmp_path / "s")
    path = tmp_path / "s" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"manifest\.json: no manifest of encoded features"):
        FeatureStore.open(tmp_path / "s")
