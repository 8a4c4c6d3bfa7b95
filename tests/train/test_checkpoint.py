"""Checkpoints: whole or not at all, checked to the last bit, and never mistaken for another."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tidegraph.errors import CheckpointError
from tidegraph.train import checkpoint as checkpoints
from tidegraph.train.checkpoint import (
    Checkpoint,
    load_checkpoint,
    remove_unfinished,
    save_checkpoint,
)
from training import Stopped


def example(number: int = 0) -> Checkpoint:
    """A few tensors of every kind that occurs, all filled with `number`."""
    return Checkpoint(
        {
            "weights.layer.weight": torch.full((3, 4), float(number)),
            "weights.empty": torch.zeros(0, 4),
            "optimizer.layer.weight.step": torch.tensor(float(number)),
            "state.memory": torch.full((5, 2), float(number)),
            "state.version": torch.tensor([number]),
            "hidden": torch.tensor([True, False, True]),
        },
        {"cursor": {"epoch": number, "loss": 0.1}, "name": "né"},
    )


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return (
        one.about == other.about
        and one.tensors.keys() == other.tensors.keys()
        and all(
            torch.equal(tensor, other.tensors[name]) and tensor.dtype == other.tensors[name].dtype
            for name, tensor in one.tensors.items()
        )
    )


def header_size(content: bytes) -> int:
    """A safetensors file is 8 bytes of length, a JSON header, and the data."""
    return 8 + int(struct.unpack("<Q", content[:8])[0])


# ---------------------------------------------------------------- writing and reading


def test_what_is_read_is_what_was_written(tmp_path):
    save_checkpoint(tmp_path / "deep" / "a.safetensors", example(3))
    assert same(load_checkpoint(tmp_path / "deep" / "a.safetensors"), example(3))


def test_groups_are_tensors_by_prefix():
    assert list(example().group("state")) == ["memory", "version"]


def test_views_and_tied_weights_are_written_whole(tmp_path):
    table = torch.arange(12.0).reshape(3, 4)
    tensors = {"a": table, "same": table, "transposed": table.T, "part": table[1:, :2]}
    save_checkpoint(tmp_path / "a", Checkpoint(tensors, {}))
    found = load_checkpoint(tmp_path / "a").tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_others_may_read_it_where_they_may_read_any_file(tmp_path):
    save_checkpoint(tmp_path / "a", example())
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_the_file_needs_no_pickle(tmp_path):
    save_checkpoint(tmp_path / "a", example())
    content = (tmp_path / "a").read_bytes()
    header = json.loads(content[8 : header_size(content)])
    assert header["state.memory"]["dtype"] == "F32"
    assert header["__metadata__"]["format"] == "1"


# ---------------------------------------------------------------- damage


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nothing\.safetensors"):
        load_checkpoint(tmp_path / "nothing.safetensors")


def test_a_directory_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        load_checkpoint(tmp_path)


def test_any_truncation_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, example())
    content = path.read_bytes()
    for size in {0, 1, 7, 8, 9, header_size(content), *range(0, len(content), 5), len(content) - 1}:
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"a\.safetensors is truncated or damaged"):
            load_checkpoint(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        load_checkpoint(path)


def test_every_single_flipped_bit_is_found(tmp_path):
    """In the data, the names, the types, the digest and the description alike.

    Spaces that pad the header mean nothing, so one more or less would change nothing either.
    """
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, example(2))
    content = bytearray(path.read_bytes())
    for place in range(len(content)):
        bit = 1 << (place * 5 % 8)
        content[place] ^= bit
        path.write_bytes(content)
        content[place] ^= bit
        with contextlib.suppress(CheckpointError):
            assert same(load_checkpoint(path), example(2)), f"byte {place} went unnoticed"
            assert content[place : place + 1].isspace()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_garbage_never_gives_another_error(tmp_path, data):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, example(1))
    content = bytearray(path.read_bytes())
    first = data.draw(st.integers(0, len(content) - 1))
    piece = data.draw(st.binary(min_size=1, max_size=40))
    content[first : first + len(piece)] = piece
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        assert same(load_checkpoint(path), example(1))


def test_another_format_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.ones(2)}, path, {"format": "7"})
    with pytest.raises(CheckpointError, match=r"format '7', expected '1'"):
        load_checkpoint(path)
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"format 'none', expected '1'"):
        load_checkpoint(path)
    save_file({"x": torch.ones(2)}, path, {"format": "1"})
    with pytest.raises(CheckpointError, match="checksum does not match"):
        load_checkpoint(path)


# ---------------------------------------------------------------- a write that fails


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["save_file", "fsync", "replace"])
def test_a_failed_write_keeps_the_previous_checkpoint(tmp_path, monkeypatch, place):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, example(1))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints if place == "save_file" else os, place, full_disk)
        with pytest.raises(CheckpointError) as error:
            save_checkpoint(path, example(2))
    assert "could not write checkpoint" in str(error.value)
    assert "No space left on device" in str(error.value)
    assert "the previous checkpoint is unchanged" in str(error.value)
    assert same(load_checkpoint(path), example(1))
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_the_first_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "save_file", full_disk)
    with pytest.raises(CheckpointError, match="none was kept"):
        save_checkpoint(tmp_path / "a.safetensors", example(2))
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not write checkpoint"):
        save_checkpoint(tmp_path / "file" / "a.safetensors", example())


def test_a_file_size_limit_is_a_full_disk(tmp_path):
    """A real write that stops half way, in a process of its own: nothing is patched."""
    path = tmp_path / "a.safetensors"
    program = """
import resource, sys
from pathlib import Path
import torch
from tidegraph.errors import CheckpointError
from tidegraph.train.checkpoint import Checkpoint, save_checkpoint
path = Path(sys.argv[1])
save_checkpoint(path, Checkpoint({"x": torch.ones(10)}, {}))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    save_checkpoint(path, Checkpoint({"x": torch.ones(100_000)}, {}))
except CheckpointError as error:
    print(error)
    sys.exit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3, done.stderr
    assert "could not write checkpoint" in done.stdout
    assert "the previous checkpoint is unchanged" in done.stdout
    assert torch.equal(load_checkpoint(path).tensors["x"], torch.ones(10))
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("place", ["save_file", "fsync", "replace"])
def test_a_kill_while_writing_keeps_the_previous_checkpoint(tmp_path, monkeypatch, place):
    """What is left half-written is removed at the next start, and nothing else is."""
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, example(1))
    (tmp_path / ".gitkeep").write_text("")

    def die(*_: object) -> None:
        raise Stopped

    def half(tensors: object, file: Path, metadata: object) -> None:
        Path(file).with_name(".tmpa1B2c3").write_bytes(b"safetensors' own name for half a file")
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(*((checkpoints, place, half) if place == "save_file" else (os, place, die)))
        with pytest.raises(Stopped):
            save_checkpoint(path, example(2))
    assert same(load_checkpoint(path), example(1))
    assert len(list(tmp_path.glob(".a.safetensors.*.tmp"))) == 1
    remove_unfinished(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".gitkeep", "a.safetensors"]


def test_sigkill_while_writing(tmp_path):
    """A process that does nothing but write is killed at any moment; what is there is whole."""
    path = tmp_path / "a.safetensors"
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:  # only files from here on: no kernel runs, so no thread is missed
        try:
            for number in range(1_000_000):
                save_checkpoint(path, example(number))
                os.write(writing, b".")
        finally:
            os._exit(1)
    os.close(writing)
    for _ in range(5):
        assert select.select([reading], [], [], 60)[0], "the writing process is stuck"
        os.read(reading, 1)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reading)
    found = load_checkpoint(path)
    assert same(found, example(found.about["cursor"]["epoch"]))
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_reader_beside_the_writer_never_sees_half_a_file(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, example(0))
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                found = load_checkpoint(path)
                if not same(found, example(found.about["cursor"]["epoch"])):
                    failures.append(found)
            except Exception as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 60):
        save_checkpoint(path, example(number))
    done.set()
    reader.join()
    assert failures == []
