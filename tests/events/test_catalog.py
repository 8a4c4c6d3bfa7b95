"""The catalog: what each data set holds, where it comes from, and what goes wrong on the way."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import socket
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

from tidegraph.errors import DownloadError, SettingError
from tidegraph.events import catalog, published
from tidegraph.events.catalog import DatasetInfo, list_datasets, load_dataset
from tidegraph.events.core import Events
from tidegraph.events.download import RetryPolicy, download

DATA = Path(os.environ.get("TIDEGRAPH_DATA") or "/nonexistent")
FILES = {
    "wikipedia": "wikipedia.csv",
    "uci": "CollegeMsg.txt.gz",
    "enron": "ml_enron.csv.gz",
    "mathoverflow": "sx-mathoverflow.txt.gz",
}
INFO = {info.name: info for info in list_datasets()}


def real_file(name: str) -> Path:
    path = DATA / FILES[name]
    if not path.is_file():
        pytest.skip(f"needs {FILES[name]} in the directory that TIDEGRAPH_DATA names")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every publisher is a port of this machine that refuses connections; retries are short."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("TIDEGRAPH_CACHE", raising=False)
    quick = RetryPolicy(timeout=5.0, attempts=1)
    monkeypatch.setattr(
        published, "download", lambda *args, **named: download(*args, retry=quick, **named)
    )
    with socket.socket() as reserved:  # bound, not listening
        reserved.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        elsewhere = {
            name: replace(entry, url=f"{base}/{entry.files[-1]}")
            for name, entry in catalog._PUBLISHED.items()
        }
        monkeypatch.setattr(catalog, "_PUBLISHED", elsewhere)
        yield


# ---- flights: bundled


def test_flights_counts(cache: Path) -> None:
    events = load_dataset("flights", cache_dir=cache)
    assert len(events) == 334_264
    assert events.schema.num_sources == 4_043
    assert events.schema.num_nodes == 4_043 + 104
    assert events.schema.bipartite
    assert events.schema.time_unit == "s"
    assert events.report.rows_moved == 126_575  # the months of the file are out of order


def test_flights_ties(cache: Path) -> None:
    events = load_dataset("flights", cache_dir=cache)
    assert events.time.dtype == np.int64
    _, count = np.unique(events.time, return_counts=True)
    assert count[count > 1].sum() == 273_002
    assert (np.diff(events.time) >= 0).all()
    assert (events.time % 60 == 0).all()
    whole = np.array([events.time[0], events.time[-1]]).astype("datetime64[s]")
    assert [str(moment) for moment in whole] == ["2013-01-01T05:15:00", "2013-12-31T23:59:00"]


def test_flights_features(cache: Path) -> None:
    events = load_dataset("flights", cache_dir=cache)
    assert events.features is not None
    assert events.features.shape == (334_264, INFO["flights"].features)
    assert len(events.schema.feature_names) == INFO["flights"].features
    assert np.isfinite(events.features).all()
    names = list(events.schema.feature_names)
    assert names[:5] == ["departure_delay", "arrival_delay", "distance", "cancelled", "diverted"]
    cancelled_E = events.features[:, 3]
    assert cancelled_E.sum() == 5_743
    assert events.features[:, 4].sum() == 1_175
    assert (events.features[cancelled_E == 1, :2] == 0).all()
    assert (events.features[:, 5:].sum(axis=1) == 1).all()  # one carrier each
    assert events.features[:, 2].max() == np.float32(4.983)


def test_flights_first_departure_is_the_published_one(cache: Path) -> None:
    #   N14228 --05:15--> IAH, two minutes late, landed 11 minutes late
    events = load_dataset("flights", cache_dir=cache)
    first = 0
    assert events.ids.to_original(events.source[first : first + 1]).tolist() == ["N14228"]
    assert events.ids.to_original(events.target[first : first + 1]).tolist() == ["IAH"]
    assert events.features is not None
    expected = np.array([2 / 60, 11 / 60, 1.4, 0, 0], dtype=np.float32)
    assert np.array_equal(events.features[first, :5], expected)


def test_flights_opens_quickly_the_second_time(cache: Path) -> None:
    first = load_dataset("flights", cache_dir=cache)
    begin = time.perf_counter()
    again = load_dataset("flights", cache_dir=cache)
    assert time.perf_counter() - begin < 0.5
    assert again.fingerprint == first.fingerprint
    assert again.path is not None


def test_flights_loads_where_nothing_can_be_written(tmp_path: Path, cache: Path) -> None:
    blocked = tmp_path / "a file, not a directory"
    blocked.write_text("")
    events = load_dataset("flights", cache_dir=blocked)
    assert events.fingerprint == load_dataset("flights", cache_dir=cache).fingerprint
    assert blocked.read_text() == ""


def test_a_damaged_store_is_read_anew(tmp_path: Path, cache: Path) -> None:
    shutil.copytree(cache / "stores", tmp_path / "stores")
    (store,) = (tmp_path / "stores").glob("flights-*")
    (store / "time.npy").write_bytes(b"cut")
    events = load_dataset("flights", cache_dir=tmp_path)
    assert events.fingerprint == load_dataset("flights", cache_dir=cache).fingerprint


def test_a_store_of_older_code_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Events.from_arrays([0, 1], [2, 2], [3, 7])
    table = tmp_path / "table"
    table.write_text("content")
    published.load_once(table, "small", tmp_path, lambda path: small)
    (before,) = (tmp_path / "stores").iterdir()
    monkeypatch.setattr(published, "_reading_code", lambda: "newer")
    published.load_once(table, "small", tmp_path, lambda path: small)
    (after,) = (tmp_path / "stores").iterdir()
    assert before != after


def test_an_equal_file_is_read_once(tmp_path: Path) -> None:
    small = Events.from_arrays([0, 1], [2, 2], [3, 7])
    table = tmp_path / "table"
    table.write_text("content")
    reads: list[Path] = []

    def read(path: Path) -> Events:
        reads.append(path)
        return small

    for _ in range(3):
        published.load_once(table, "small", tmp_path, read)
    assert len(reads) == 1
    table.write_text("other content")
    published.load_once(table, "small", tmp_path, read)
    assert len(reads) == 2


# ---- published data sets


@pytest.mark.parametrize("name", list(FILES))
def test_real_counts(name: str, cache: Path) -> None:
    real_file(name)
    events = load_dataset(name, data_dir=DATA, cache_dir=cache, download=False)
    assert len(events) == INFO[name].events
    assert events.schema.num_nodes == INFO[name].nodes
    assert events.schema.bipartite == (name == "wikipedia")
    assert events.time.dtype == np.int64
    assert events.schema.time_unit == "s"
    assert published.content_digest(events) == catalog._PUBLISHED[name].content
    assert events.report.notes == load_dataset(name, data_dir=DATA, cache_dir=cache).report.notes


def test_wikipedia_has_labels_and_sides(cache: Path) -> None:
    real_file("wikipedia")
    begin = time.perf_counter()
    events = load_dataset("wikipedia", data_dir=DATA, cache_dir=cache)
    elapsed = time.perf_counter() - begin
    assert events.label is not None
    assert events.label.sum() == 217
    assert events.schema.num_sources == 8_227
    assert events.features is None
    again = time.perf_counter()
    load_dataset("wikipedia", data_dir=DATA, cache_dir=cache)
    assert time.perf_counter() - again < 0.5, f"first load took {elapsed:.2f} s"


def test_published_peculiarities(cache: Path) -> None:
    for name in ("uci", "enron", "mathoverflow"):
        real_file(name)
    load = {
        name: load_dataset(name, data_dir=DATA, cache_dir=cache)
        for name in ("uci", "enron", "mathoverflow")
    }
    _, uci_ties = np.unique(load["uci"].time, return_counts=True)
    assert uci_ties.max() == 38
    _, enron_ties = np.unique(load["enron"].time, return_counts=True)
    assert enron_ties.max() == 1_705
    assert (load["enron"].source == load["enron"].target).sum() == 16_410
    assert (load["mathoverflow"].source == load["mathoverflow"].target).sum() == 116_109
    assert load["mathoverflow"].report.rows_moved > 0
    assert load["enron"].ids.to_original(np.array([0])).tolist() == [1]


def test_data_directory_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_file("uci")
    monkeypatch.setenv("TIDEGRAPH_DATA", str(DATA))
    monkeypatch.setenv("TIDEGRAPH_CACHE", str(tmp_path))
    assert len(load_dataset("uci")) == 59_835
    assert [path.name for path in tmp_path.iterdir()] == ["stores"]


# ---- I68: network off; a file put there by hand; a truncated file; no prompt


def test_no_network_and_an_empty_cache(tmp_path: Path) -> None:
    for name, entry in catalog._PUBLISHED.items():
        with pytest.raises(DownloadError) as caught:
            load_dataset(name, data_dir=tmp_path / "none", cache_dir=tmp_path)
        message = str(caught.value)
        assert entry.url in message
        assert f"put the file there by hand: {tmp_path / entry.files[-1]}" in message
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("a question was asked")

    monkeypatch.setattr("builtins.input", asked)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DownloadError):
        load_dataset("uci", data_dir=tmp_path, cache_dir=tmp_path)


def test_download_off_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        load_dataset("enron", data_dir=tmp_path / "d", cache_dir=tmp_path / "c", download=False)
    message = str(caught.value)
    assert "downloading is off" in message
    assert str(tmp_path / "d") in message
    assert str(tmp_path / "c") in message
    assert "ml_enron.csv.gz" in message
    assert catalog._PUBLISHED["enron"].url in message


@pytest.mark.parametrize("name", list(FILES))
def test_a_file_put_there_by_hand_is_taken(name: str, tmp_path: Path) -> None:
    shutil.copy(real_file(name), tmp_path)
    events = load_dataset(name, data_dir=tmp_path / "none", cache_dir=tmp_path, download=False)
    assert len(events) == INFO[name].events


def test_the_publishers_archive_put_there_by_hand_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "enron.zip", "w") as archive:
        archive.writestr("enron/ml_enron.csv", gzip.decompress(real_file("enron").read_bytes()))
        archive.writestr("enron/ml_enron.npy", b"not needed")
    events = load_dataset("enron", data_dir=tmp_path, cache_dir=tmp_path / "c", download=False)
    assert len(events) == 125_235


def test_an_archive_without_the_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "enron.zip", "w") as archive:
        archive.writestr("readme", "nothing here")
    with pytest.raises(DownloadError, match=r"holds no ml_enron\.csv"):
        load_dataset("enron", data_dir=tmp_path, cache_dir=tmp_path)


@pytest.mark.parametrize("name", list(FILES))
def test_a_truncated_file_is_refused(name: str, tmp_path: Path) -> None:
    data = real_file(name).read_bytes()
    path = tmp_path / FILES[name]
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(DownloadError, match="cut short") as caught:
        load_dataset(name, data_dir=tmp_path / "none", cache_dir=tmp_path)
    assert str(path) in str(caught.value)
    assert catalog._PUBLISHED[name].url in str(caught.value)
    assert not (tmp_path / "stores").exists()


def test_a_last_line_that_is_missing_is_noticed(tmp_path: Path) -> None:
    lines = real_file("wikipedia").read_bytes().splitlines(keepends=True)
    (tmp_path / "wikipedia.csv").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DownloadError, match="157,473 events"):
        load_dataset("wikipedia", data_dir=tmp_path, cache_dir=tmp_path)


def test_a_changed_digit_is_noticed(tmp_path: Path) -> None:
    text = gzip.decompress(real_file("uci").read_bytes()).replace(
        b"1 2 1082040961", b"1 2 1082040962"
    )
    (tmp_path / "CollegeMsg.txt.gz").write_bytes(gzip.compress(text))
    with pytest.raises(DownloadError, match="not those of the published file"):
        load_dataset("uci", data_dir=tmp_path, cache_dir=tmp_path)


def test_another_compression_of_the_same_rows_is_taken(tmp_path: Path) -> None:
    text = gzip.decompress(real_file("uci").read_bytes())
    (tmp_path / "CollegeMsg.txt.gz").write_bytes(gzip.compress(text, compresslevel=1))
    assert len(load_dataset("uci", data_dir=tmp_path, cache_dir=tmp_path)) == 59_835


def test_content_without_a_known_checksum_is_noted(tmp_path: Path) -> None:
    rows = real_file("wikipedia").read_text()
    (tmp_path / "wikipedia.csv").write_text(rows.replace("0,8227,0,0\n", "0,8227,1,0\n", 1))
    events = load_dataset("wikipedia", data_dir=tmp_path, cache_dir=tmp_path)
    assert any("no checksum of this file is known" in note for note in events.report.notes)


# ---- the publisher's layout of wikipedia, with its features


def test_wikipedia_in_the_publishers_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The publisher's file has one header name for 172 features, numbers its items from 0 again and
    # writes times as 36.0. Both files below hold:
    #
    #   user 0 --0--> page A     user 1 --36--> page B     user 2 --36, banned--> page B
    publishers, plain = tmp_path / "publisher", tmp_path / "plain"
    publishers.mkdir()
    plain.mkdir()
    zeros = ",0.0" * 170
    (publishers / "wikipedia.csv").write_text(
        "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
        f"0,0,0.0,0,0.5,-0.25{zeros}\n1,1,36.0,0,1.5,-0.25{zeros}\n2,1,36.0,1,2.5,-0.25{zeros}\n"
    )
    (plain / "wikipedia.csv").write_text("u,i,ts,label\n0,3,0,0\n1,4,36,0\n2,4,36,1\n")
    entry = replace(catalog._PUBLISHED["wikipedia"], events=3, nodes=5)
    monkeypatch.setitem(catalog._PUBLISHED, "wikipedia", entry)

    events = load_dataset("wikipedia", data_dir=publishers, cache_dir=tmp_path / "cache")
    other = load_dataset("wikipedia", data_dir=plain, cache_dir=tmp_path / "cache")
    assert events.features is not None
    assert events.features.shape == (3, 172)
    assert events.features[:, 0].tolist() == [0.5, 1.5, 2.5]
    assert events.features[:, 1].tolist() == [-0.25] * 3
    for loaded in (events, other):
        assert loaded.source.tolist() == [0, 1, 2]
        assert loaded.target.tolist() == [3, 4, 4]
        assert loaded.time.tolist() == [0, 36, 36]
        assert loaded.time.dtype == np.int64
        assert loaded.label is not None
        assert loaded.label.tolist() == [0, 0, 1]
        assert loaded.schema.num_sources == 3
    assert published.content_digest(events) == published.content_digest(other)


def test_a_publishers_row_that_is_cut_is_refused(tmp_path: Path) -> None:
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    whole = "0,0,0.0,0" + ",0.5" * 172 + "\n"
    (tmp_path / "wikipedia.csv").write_text(header + whole + "1,1,36.0,0,0.5")
    with pytest.raises(DownloadError, match="cannot be read"):
        load_dataset("wikipedia", data_dir=tmp_path, cache_dir=tmp_path)


# ---- names


def test_every_entry_is_complete_and_loads_by_name() -> None:
    assert list(INFO) == [
        "flights",
        "wikipedia",
        "uci",
        "enron",
        "mathoverflow",
        "synthetic:wikipedia",
        "synthetic:talk",
    ]
    for info in INFO.values():
        assert info.events > 0
        assert info.nodes > 0
        assert info.terms
        assert info.citation
        assert info.obtained
        assert "\n" not in info.description
    with pytest.raises(FrozenInstanceError):
        info.events = 1  # type: ignore[misc]
    assert isinstance(info, DatasetInfo)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("wikipeda", "wikipedia"),
        ("flight", "flights"),
        ("mathsoverflow", "mathoverflow"),
        ("synthetic:wiki", "synthetic:wikipedia"),
        ("synthetic:talks:0.1", "synthetic:talk"),
    ],
)
def test_a_typo_gets_the_closest_name_and_the_list(typo: str, meant: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_dataset(typo)
    message = str(caught.value)
    assert f"there is no data set {typo!r}. Did you mean {meant!r}?" in message
    for name in INFO:
        assert name in message


def test_nothing_close_gets_the_list_alone() -> None:
    with pytest.raises(SettingError, match=r"no data set 'xyzzy'\. There are: flights, "):
        load_dataset("xyzzy")


def test_scale_in_the_name_and_as_an_argument_agree() -> None:
    in_name = load_dataset("synthetic:wikipedia:0.01", seed=3)
    as_argument = load_dataset("synthetic:wikipedia", scale=0.01, seed=3)
    assert in_name.fingerprint == as_argument.fingerprint
    assert len(load_dataset("Synthetic:Talk:0.001")) == 7_800


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("synthetic:talk:big", 1.0, "the scale in 'synthetic:talk:big' is 'big'"),
        ("synthetic:talk:0.1", 0.2, "names scale 0.1, but scale=0.2 was given too"),
        ("flights", 0.5, "scale=0.5 has no effect on 'flights'"),
        ("flights:0.5", 1.0, "no data set 'flights:0.5'"),
        ("synthetic:talk:-1", 1.0, "scale is -1.0"),
    ],
)
def test_a_scale_that_makes_no_sense(name: str, scale: float, message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        load_dataset(name, scale=scale)


def test_default_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGRAPH_CACHE", str(tmp_path / "named"))
    assert published.default_cache_directory() == tmp_path / "named"
    monkeypatch.delenv("TIDEGRAPH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert published.default_cache_directory() == tmp_path / "tidegraph" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert published.default_cache_directory() == tmp_path / "home/.cache/tidegraph/data"
