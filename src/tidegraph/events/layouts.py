"""Files laid out as other libraries of the field expect: JODIE, DGB and DyGLib, TGL, TGB, by name.

A layout says which column is which and which files lie beside the table. What comes out are
ordinary `Events` under the ids of the files; features, labels and node features come along.

Shape legend: E events, N nodes, F event-feature width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError, listed, shown
from tidegraph.events.arrays import events_from_arrays
from tidegraph.events.core import Events
from tidegraph.events.ids import NodeIds

LAYOUTS = ("jodie", "dyglib", "dgb", "tgl", "tgb")
_TABLES = {
    "jodie": ("*.csv", "*.csv.gz"),
    "dyglib": ("ml_*.csv", "ml_*.csv.gz"),
    "dgb": ("ml_*.csv", "ml_*.csv.gz"),
    "tgl": ("edges.csv", "edges.csv.gz"),
    "tgb": ("*_edgelist*.csv",),
}
_EXACT_FLOAT = 1 << 53


def read_layout(
    data: Any,
    layout: str,
    *,
    time_unit: str | None = None,
    bipartite: bool | None = None,
    store: str | Path | None = None,
    without: Sequence[str] = (),
) -> Events:
    """Read a file or directory of a layout.

    - **jodie**: `user_id,item_id,timestamp,state_label`, then any number of features under one
      name. Users and items are numbered apart; the label is the user's after the event.
    - **dyglib**, **dgb**: `ml_NAME.csv` with `u`, `i`, `ts`, `label`, `idx`, beside it
      `ml_NAME.npy` (row `idx` belongs to the event; row 0 is padding) and `ml_NAME_node.npy` (row
      `id`). Ids start at 1. Tables of zeros, which stand for no features there, are left out.
    - **tgl**: `edges.csv` with `src`, `dst`, `time`, beside it `edge_features.pt` and
      `node_features.pt`. `int_roll` and `ext_roll` become extra columns. Node labels lie in
      `labels.csv`, see `read_node_labels`.
    - **tgb**: `NAME_edgelist.csv`, which is JODIE's layout or time, source, target and numbers.
      Ids are those that py-tgb gives, so that its negatives fit.

    Args:
        data: the table, or a directory that holds one.
        layout: see above.
        time_unit, bipartite, store: as in `read_table`.
        without: names of arguments that were given although the layout decides them.

    Raises:
        SettingError: no such layout, or an argument that would have no effect.
        InputError: a file or column is missing, or does not fit the others.
    """
    if layout not in LAYOUTS:
        raise SettingError(f"layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    if without:
        names = ", ".join(f"{name}=" for name in without)
        raise SettingError(
            f"{names} has no effect with layout={layout!r}, which says which column is which; "
            "leave one of them out"
        )
    path = find_table(data, layout)
    read = {"jodie": _read_jodie, "tgl": _read_tgl, "tgb": _read_tgb}.get(layout, _read_dyglib)
    events = read(path, time_unit, bipartite)
    return events if store is None else events.save(store)


def find_table(data: Any, layout: str) -> Path:
    """The table of a layout at `data`, a file or a directory.

    Raises:
        InputError: there is none, or more than one.
    """
    if not isinstance(data, (str, Path)):
        raise SettingError(f"layout={layout!r} is for files; found a {type(data).__name__}")
    path = Path(data)
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory")
    found = sorted({one for pattern in _TABLES[layout] for one in path.glob(pattern)})
    if len(found) != 1:
        there = listed(one.name for one in found) or "none"
        raise InputError(
            f"{path}: expected one table named {' or '.join(_TABLES[layout])} (layout {layout}), "
            f"found {there}; name the file"
        )
    return found[0]


def layout_files(data: Any, layout: str) -> list[Path]:
    """The files that are read, those that exist."""
    path = find_table(data, layout)
    if layout in ("dyglib", "dgb"):
        return [path, *(one for one in _dyglib_arrays(path) if one.exists())]
    if layout == "tgl":
        beside = (path.parent / name for name in ("edge_features.pt", "node_features.pt"))
        return [path, *(one for one in beside if one.exists())]
    return [path]


# ---------------------------------------------------------------- JODIE


def _read_jodie(path: Path, time_unit: str | None, bipartite: bool | None) -> Events:
    if bipartite is False:
        raise SettingError(
            "layout='jodie' has users and items: bipartite=False does not go with it"
        )
    table = _jodie_table(path)
    users, user_E = np.unique(table.column("user_id"), return_inverse=True)
    items, item_E = np.unique(table.column("item_id"), return_inverse=True)
    return events_from_arrays(
        user_E,
        item_E + len(users),
        table.column("timestamp"),
        features=table.features,
        label=table.column("state_label"),
        num_nodes=len(users) + len(items),
        num_sources=len(users),
        time_unit=time_unit,
        name=path.name,
        ids=NodeIds.from_sides(users, items, separate=True),
    )


@dataclass(frozen=True, eq=False)
class _Numbers:
    """A table of numbers: integers where a column is whole, else floats."""

    name: str
    columns: Mapping[str, np.ndarray]
    features: np.ndarray | None = None

    def column(self, name: str) -> np.ndarray:
        return self.columns[name]


def _jodie_table(path: Path) -> _Numbers:
    named = ("user_id", "item_id", "timestamp", "state_label")
    header, fields = _first_rows(path)
    if [name.strip() for name in header[:3]] != list(named[:3]) or len(header) < 4:
        raise InputError(
            f"{path}: has the columns {listed(header)}; layout jodie expects {', '.join(named)} "
            "and then features"
        )
    width = fields - len(named)
    if width < 0:
        raise InputError(f"{path}, row 1: has {fields} fields; expected {len(named)} or more")
    names = [*named, *(f"feature {i}" for i in range(width))]
    table = _read_csv(path, names, named[:2])
    features_EF = None
    if width:
        features_EF = np.empty((table.num_rows, width), np.float32)
        for place in range(width):
            features_EF[:, place] = table.column(names[4 + place]).to_numpy()
    return _Numbers(path.name, {name: _exact(table, name) for name in named}, features_EF)


# ---------------------------------------------------------------- DGB, DyGLib


def _dyglib_arrays(path: Path) -> tuple[Path, Path]:
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    return path.with_name(f"{stem}.npy"), path.with_name(f"{stem}_node.npy")


def _read_dyglib(path: Path, time_unit: str | None, bipartite: bool | None) -> Events:
    table = _named_columns(path, ("u", "i", "ts", "label", "idx"), whole=("u", "i", "idx"))
    row_E = table.column("idx")
    of_events, of_nodes = _dyglib_arrays(path)
    notes: list[str] = []
    features_RF = _padded_rows(of_events, "event features", notes)
    nodes_RG = _padded_rows(of_nodes, "node features", notes)
    source_E, target_E = table.column("u"), table.column("i")
    lowest = min(int(source_E.min()), int(target_E.min()), int(row_E.min()))
    if lowest < 1:
        raise InputError(f"{path}: has an id or idx {lowest}; in layout dyglib they start at 1")
    largest = max(int(source_E.max()), int(target_E.max()))
    if features_RF is not None:
        _check_rows(of_events, features_RF, int(row_E.max()), "idx", path)
        features_RF = features_RF[row_E]
    if nodes_RG is not None:
        _check_rows(of_nodes, nodes_RG, largest, "id", path)
        largest = len(nodes_RG) - 1
        nodes_RG = nodes_RG[1:]
    return events_from_arrays(
        source_E - 1,
        target_E - 1,
        table.column("ts"),
        features=features_RF,
        label=table.column("label"),
        node_features=nodes_RG,
        num_nodes=largest,
        bipartite=bipartite,
        time_unit=time_unit,
        name=path.name,
        ids=NodeIds.from_values(np.arange(1, largest + 1)),
        notes=tuple(notes),
    )


def _padded_rows(path: Path, what: str, notes: list[str]) -> np.ndarray | None:
    """A table whose row 0 is padding; None where it is not there or holds nothing but zeros."""
    if not path.exists():
        notes.append(f"no {path.name} beside the table: no {what}")
        return None
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a readable npy file ({error})") from None
    if array.ndim != 2 or array.dtype.kind not in "iufb":
        raise InputError(
            f"{path}: has shape {array.shape} and type {array.dtype}; expected a row of numbers "
            "for each id, and row 0 for padding"
        )
    if not array.any():
        notes.append(f"{path.name} holds nothing but zeros: no {what}")
        return None
    return array


def _check_rows(path: Path, array: np.ndarray, largest: int, what: str, table: Path) -> None:
    if largest >= len(array):
        raise InputError(
            f"{path}: has {len(array):,} rows, but {table.name} has {what} {largest:,}; expected a "
            f"row for each {what} and row 0 for padding"
        )


# ---------------------------------------------------------------- TGL


def _read_tgl(path: Path, time_unit: str | None, bipartite: bool | None) -> Events:
    table = _named_columns(
        path, ("src", "dst", "time"), ("int_roll", "ext_roll"), whole=("src", "dst")
    )
    extra = {name: column for name, column in table.columns.items() if name.endswith("_roll")}
    count = len(table.column("time"))
    features = _torch_rows(path.with_name("edge_features.pt"))
    nodes = _torch_rows(path.with_name("node_features.pt"))
    if features is not None and len(features) != count:
        raise InputError(
            f"{path.with_name('edge_features.pt')}: has {len(features):,} rows for {count:,} edges"
        )
    return events_from_arrays(
        table.column("src"),
        table.column("dst"),
        table.column("time"),
        features=features,
        node_features=nodes,
        bipartite=bipartite,
        time_unit=time_unit,
        extra=extra,
        name=path.name,
        notes=_borders(table, extra),
    )


def _borders(table: _Numbers, extra: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """A note on the split that the file names, if it is one in time."""
    roll_E, time_E = extra.get("ext_roll"), table.column("time")
    if roll_E is None or not {0, 1, 2} <= set(np.unique(roll_E).tolist()):
        return ()
    train, val = time_E[roll_E == 0].max().item(), time_E[roll_E == 1].max().item()
    return (f"ext_roll ends training at {train} and validation at {val} (val_time, test_time)",)


def _torch_rows(path: Path) -> np.ndarray | None:
    """A saved tensor [rows, width]; None where there is no such file."""
    if not path.exists():
        return None
    import torch

    try:  # weights_only: a .pt file is a pickle, and those can run any code
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise InputError(f"{path}: not a readable file of one tensor ({first[:200]})") from None
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 2:
        found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise InputError(f"{path}: holds {found}; expected a tensor [rows, width]")
    array: np.ndarray = tensor.to(torch.float32).numpy()
    return array


# ---------------------------------------------------------------- TGB


def _read_tgb(path: Path, time_unit: str | None, bipartite: bool | None) -> Events:
    header, fields = _first_rows(path)
    if header[0].strip() == "user_id":
        table = _jodie_table(path)
        users = table.column("user_id")
        return events_from_arrays(
            users,
            table.column("item_id") + int(users.max()) + 1,
            table.column("timestamp"),
            features=table.features,
            label=table.column("state_label"),
            bipartite=bipartite,
            time_unit=time_unit,
            name=path.name,
        )
    if fields < 3 or len(header) != fields:
        raise InputError(
            f"{path}: has the columns {listed(header)} and {fields} fields in row 1; layout tgb "
            "expects time, source, target and then numbers, or the layout jodie"
        )
    raw = _read_csv(path, [f"c{i}" for i in range(fields)], text=("c1", "c2"))
    both = [value for pair in zip(raw.column("c1").to_pylist(), raw.column("c2").to_pylist(),
            strict=True) for value in pair]  # fmt: skip
    # py-tgb numbers nodes as they come, the source before the target.
    number = {value: place for place, value in enumerate(dict.fromkeys(both))}
    node_E2 = np.array([number[value] for value in both], np.int64).reshape(-1, 2)
    rest = [raw.column(f"c{i}").to_numpy() for i in range(3, fields)]
    return events_from_arrays(
        node_E2[:, 0],
        node_E2[:, 1],
        _exact(raw, "c0"),
        features=np.stack(rest, axis=1) if rest else None,
        bipartite=bipartite,
        time_unit=time_unit,
        feature_names=[name.strip() for name in header[3:]],
        name=path.name,
    )


# ---------------------------------------------------------------- CSV


def _first_rows(path: Path) -> tuple[list[str], int]:
    """The header's names and the number of fields of the first row."""
    import csv
    import gzip

    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            header, first = next(rows, []), next(rows, [])
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    if not first:
        raise InputError(f"{path}: has no rows; expected a header and at least one event")
    return header, len(first)


def _named_columns(
    path: Path, needed: Sequence[str], others: Sequence[str] = (), *, whole: Sequence[str]
) -> _Numbers:
    """Columns by the names of the header, in whatever order; the index column has none."""
    header, _ = _first_rows(path)
    names = [name.strip() for name in header]
    missing = [name for name in needed if name not in names]
    if missing:
        raise InputError(
            f"{path}: no column {', '.join(missing)}; there are "
            + listed(name or "(no name)" for name in names)
        )
    unique = [name or f"unnamed {place}" for place, name in enumerate(names)]
    chosen = [name for name in (*needed, *others) if name in names]
    table = _read_csv(path, unique, whole, only=chosen)
    found = {name: _exact(table, name) for name in chosen}
    for name in whole:
        if found[name].dtype.kind != "i":
            bad = int(np.argmax(found[name] != np.floor(found[name])))
            raise InputError(
                f"{path}, row {bad + 1}, column {name}: {found[name][bad]}; expected whole numbers"
            )
    return _Numbers(path.name, found)


def _read_csv(
    path: Path,
    names: Sequence[str],
    whole: Sequence[str] = (),
    *,
    only: Sequence[str] | None = None,
    text: Sequence[str] = (),
) -> Any:
    """An Arrow table: `whole` columns as integers if they can be, `text` as text, else float64."""
    import pyarrow as pa
    from pyarrow import csv

    types = {name: pa.string() if name in text else pa.float64() for name in names}
    # As integers first: ids and times beyond 2^53 would lose digits as floats.
    tried = [name for name in names if name not in text and not name.startswith("feature ")]
    kinds = [
        types | dict.fromkeys(tried, pa.int64()),
        types | dict.fromkeys(whole, pa.int64()),
        types,
    ]
    for place, kind in enumerate(kinds):
        try:
            return csv.read_csv(
                path,
                read_options=csv.ReadOptions(column_names=list(names), skip_rows=1),
                convert_options=csv.ConvertOptions(
                    column_types=kind, include_columns=None if only is None else list(only),
                    strings_can_be_null=False, null_values=[],
                ),
            )  # fmt: skip
        except (pa.ArrowInvalid, OSError) as error:
            if place == len(kinds) - 1:
                raise InputError(f"{path}: cannot be read: {_said(error, names)}") from None
    raise AssertionError("unreachable")


def _said(error: Exception, names: Sequence[str]) -> str:
    """Arrow's message, with the columns by name."""
    text = " ".join(str(error).split())
    for place, name in enumerate(names):
        text = text.replace(f"column #{place}:", f"column {shown(name)}:")
    return text[:300]


def _exact(table: Any, name: str) -> np.ndarray:
    """A column as integers where all values are whole, else as floats."""
    array: np.ndarray = table.column(name).to_numpy()
    if (
        array.dtype.kind == "f"
        and np.isfinite(array).all()
        and (np.abs(array) < _EXACT_FLOAT).all()
    ):
        integer = array.astype(np.int64)
        if (integer == array).all():
            return integer
    return array
