"""Settings of a run: five sections, each declared once, merged from defaults, preset, YAML, flags.

`data` and `split` are declared here, `training` is `TrainSettings`, `model` is the constructor of
the model, `task` is `TaskSettings`. Everything else (flags, help, checks of YAML files, the saved
config) is made from these declarations.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tidegraph.errors import SettingError, shown
from tidegraph.models import MODELS, model_class, model_settings
from tidegraph.presets import Preset, find_preset
from tidegraph.train import TrainSettings
from tidegraph.train.run_config import check_config
from tidegraph.train.tasks.settings import TaskSettings

SECTIONS = ("data", "split", "model", "training", "task")


class DataSettings(BaseModel):
    """Which columns of a table play which part; `read_table` has the details."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str | int = Field("source", description="column of who acts; a position from 0 works")
    target: str | int = Field("target", description="column of whom or what it is done to")
    time: str | int = Field("time", description="column of when: numbers or ISO text")
    features: tuple[str | int, ...] = Field(
        (), description='numeric columns that describe the event; "rest": all others'
    )
    categorical: tuple[str | int, ...] = Field(
        (), description="columns that become one feature per value"
    )
    label: str | int | None = Field(None, description="numeric column with a label per event")
    weight: str | int | None = Field(None, description="numeric column with a weight per event")
    time_unit: Literal["ns", "us", "ms", "s", "min", "h", "d"] | None = Field(
        None, description="unit of bare numbers in the time column"
    )
    bipartite: bool | None = Field(
        None, description="sources and targets are different kinds of nodes; found out by default"
    )
    header: bool | None = Field(
        None, description="the text file has a header; found out by default"
    )
    delimiter: str | None = Field(None, description="of a text file; found out by default")
    table: str | None = Field(None, description="table of a DuckDB database")
    query: str | None = Field(
        None, description="SQL to read from; the file is the table `data` in it"
    )
    layout: Literal["jodie", "dyglib", "dgb", "tgl", "tgb"] | None = Field(
        None,
        description="the file or directory is laid out as this library expects: says which column "
        "is which and which files lie beside it",
    )
    node_features: str | None = Field(
        None, description="a table of node features: all its numeric columns; needs --node-id"
    )
    node_id: str | int | None = Field(None, description="id column of the node features' table")
    format: Literal["csv", "tsv", "parquet", "jsonl", "duckdb"] | None = Field(
        None, description="of the file, where its name does not say"
    )

    def changed(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as plain values."""
        values = self.model_dump(exclude_defaults=True)
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


class SplitSettings(BaseModel):
    """How events are divided in time; `Events.split` has the details."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    val: float = Field(0.15, description="share of the events for validation")
    test: float = Field(0.15, description="share of the events for the test")
    by: Literal["events", "time"] = Field(
        "events", description="shares of the number of events, or of the time span"
    )
    ties: Literal["together", "row"] = Field(
        "together", description="events at a border's time stay together, or are cut in row order"
    )
    hidden_nodes: float = Field(
        0.0, description="share of later nodes kept out of training, for an inductive evaluation"
    )
    val_time: int | float | str | None = Field(
        None, description="training ends at this time (number or ISO text), instead of shares"
    )
    test_time: int | float | str | None = Field(
        None, description="validation ends at this time, instead of shares"
    )

    def effective(self) -> dict[str, Any]:
        """What decides the split, as plain values: borders, or shares and how they are taken."""
        timed = self.val_time is not None or self.test_time is not None
        unused = {"val", "test", "by", "ties"} if timed else {"val_time", "test_time"}
        if self.by == "time":
            unused.add("ties")
        return self.model_dump(exclude=unused)


@dataclass(frozen=True)
class Setting:
    """One setting of any section, as flags and YAML files know it.

    Attributes:
        section, key: where it belongs.
        type, default, help: as declared.
    """

    section: str
    key: str
    type: Any
    default: Any
    help: str


@dataclass(frozen=True)
class Settings:
    """The effective settings.

    Attributes:
        data, split, training, task: validated.
        model: the model's name; model_values: what differs from its defaults.
        path: DATA as a YAML file gives it, or None.
        preset: name of the preset that was used, or "".
        given: "section.key" -> "preset", "file" or "flag": where a value came from.
    """

    data: DataSettings
    split: SplitSettings
    training: TrainSettings
    task: TaskSettings
    model: str = "tgn"
    model_values: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    preset: str = ""
    given: Mapping[str, str] = field(default_factory=dict)


def settings_of(section: str, model: str | None = None) -> list[Setting]:
    """All settings of a section; of the models' section, those of `model` or of all models."""
    if section == "model":
        classes = [model_class(model)] if model else list(MODELS.values())
        found: dict[str, Setting] = {}
        for cls in classes:
            for one in model_settings(cls):
                found.setdefault(
                    one.name, Setting("model", one.name, one.type, one.default, one.help)
                )
        return list(found.values())
    fields: dict[str, type[BaseModel]] = {
        "data": DataSettings,
        "split": SplitSettings,
        "training": TrainSettings,
        "task": TaskSettings,
    }
    return [
        Setting(section, key, info.annotation, info.default, info.description or "")
        for key, info in fields[section].model_fields.items()
    ]


def merge(
    flags: Mapping[str, Mapping[str, Any]],
    *,
    model: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
) -> Settings:
    """Defaults, then the preset, then the YAML file, then flags.

    Args:
        flags: section -> key -> value, only what was given.
        model: of the flag `--model`.
        preset: of the flag `--preset`.
        config: of the flag `--config`.

    Raises:
        SettingError: an unknown key (names it and the closest), a value that cannot be.
    """
    from_file = read_config(config) if config is not None else {}
    chosen = find_preset(preset) if preset else Preset("")
    from_preset = {"model": chosen.model, "training": chosen.training, "split": chosen.split}
    in_model = dict(from_file.get("model", {}))
    name = model or in_model.pop("name", None) or chosen.name or "tgn"
    if chosen.name and name != chosen.name:
        raise SettingError(
            f"preset {preset!r} is for the model {chosen.name}, and {name} was asked for: leave "
            "one of them out"
        )
    in_model.pop("name", None)
    model_class(name)
    layers = (
        ("preset", from_preset),
        ("file", {**from_file, "model": in_model}),
        ("flag", flags),
    )
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    given: dict[str, str] = {}
    path = dict(from_file.get("data", {})).get("path")
    for origin, layer in layers:
        for section in SECTIONS:
            for key, value in layer.get(section, {}).items():
                if (section, key) == ("data", "path"):
                    continue
                _check_key(section, key, name, config if origin == "file" else None)
                values[section][key] = value
                given[f"{section}.{key}"] = origin
    for section in SECTIONS:
        origins = {key: given[f"{section}.{key}"] for key in values[section]}
        check_effect(section, values[section], origins)

    def where(section: str, key: str) -> str:
        return f"{config}: " if given.get(f"{section}.{key}") == "file" else ""

    return Settings(
        data=_validated(DataSettings, values, "data", where),
        split=_validated(SplitSettings, values, "split", where),
        training=_validated(TrainSettings, values, "training", where),
        task=_validated(TaskSettings, values, "task", where),
        model=name,
        model_values=model_values(name, values["model"], where),
        path=path,
        preset=preset or "",
        given=given,
    )


def check_effect(section: str, values: Mapping[str, Any], origins: Mapping[str, Any]) -> None:
    """Refuse a setting that another one makes meaningless.

    Args:
        section: of both.
        values: by key.
        origins: key -> "preset", "file" or "flag". What a later origin overrides is not refused:
            `--val-time` stands over a preset's shares.

    Raises:
        SettingError: names both.
    """
    rank = {"preset": 0, "file": 1, "flag": 2}
    for key, reason, by in _WITHOUT_EFFECT.get(section, ()):
        if values.get(key) is None or values.get(by) in (None, False, ()):
            continue
        if rank.get(origins[key], 0) >= rank.get(origins[by], 0):
            flag, other = (f"--{one.replace('_', '-')}" for one in (key, by))
            raise SettingError(
                f"{section} setting {key} ({flag}) has no effect with {by} ({other}): {reason}; "
                "leave one of them out"
            )


_BORDERS = "the borders of the split are given as times"
_WITHOUT_EFFECT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "split": tuple(
        (key, _BORDERS, by)
        for key in ("val", "test", "by", "ties")
        for by in ("val_time", "test_time")
    ),
    "training": (("checkpoint_seconds", "batches are counted instead", "checkpoint_batches"),),
    "data": (("table", "the query says what is read", "query"),),
}
"""Section -> (key, why it has no effect, the key that takes its place)."""


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """A YAML file with the sections of a run's settings; a run's config.yaml too.

    Raises:
        SettingError: no such file, not YAML, an unknown section.
        CheckpointError: a run's config.yaml that was changed to what it cannot be.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise SettingError(f"--config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"--config {path}: is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise SettingError(f"--config {path}: expected the sections {', '.join(SECTIONS)}")
    if "parts" in content and isinstance(content.get("model"), dict):
        content = _of_run(check_config(path, content))
    for section, values in content.items():
        if section not in SECTIONS:
            raise SettingError(_unknown(f"{path}: ", "section", section, SECTIONS))
        if not isinstance(values, dict):
            raise SettingError(
                f"{path}: section {section!r} is {shown(values)}; expected keys and values"
            )
    return content


def _of_run(config: dict[str, Any]) -> dict[str, Any]:
    """A run's config.yaml as sections, to train again with the same settings."""
    data = config.get("data", {})
    again = {**data.get("columns", {}), "path": data.get("dataset") or data.get("file") or
             data.get("store")}  # fmt: skip
    return {
        "data": again,
        "split": data.get("split", {}),
        "model": {"name": config["model"]["name"], **config["model"].get("settings", {})},
        "training": config.get("training", {}),
        "task": data.get("task", {}),
    }


def _check_key(section: str, key: str, model: str, config: Path | None) -> None:
    names = [setting.key for setting in settings_of(section, model)]
    if key in names:
        return
    where = f"{config}: " if config is not None else ""
    for other in SECTIONS:
        if other != section and key in [s.key for s in settings_of(other, model)]:
            raise SettingError(
                f"{where}setting {key!r} is not in section {section!r} but in {other!r}"
            )
    label = f"{model} setting" if section == "model" else f"{section} setting"
    raise SettingError(_unknown(where, label, key, names))


def _unknown(where: str, label: str, key: str, names: Any) -> str:
    close = difflib.get_close_matches(str(key), names, 1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{where}unknown {label} {key!r}: expected one of {', '.join(names)}.{hint}"


def _validated(
    cls: Any, values: dict[str, dict[str, Any]], section: str, where: Callable[[str, str], str]
) -> Any:
    try:
        return cls(**values[section])
    except ValidationError as error:
        first = error.errors()[0]
        key, value = str(first["loc"][0]), shown(first["input"])
        raise SettingError(f"{where(section, key)}setting {key}={value}: {first['msg']}") from None


def model_values(
    name: str, values: Mapping[str, Any], where: Callable[[str, str], str]
) -> dict[str, Any]:
    """Values of a model's settings, checked and as the model takes them.

    Args:
        name: of the model.
        values: by setting.
        where: (section, key) -> the file that the value is from, for messages.

    Raises:
        SettingError: an unknown setting, or a value of another type.
    """
    types = {setting.key: setting.type for setting in settings_of("model", name)}
    checked = {}
    for key, value in values.items():
        if key not in types:
            raise SettingError(_unknown(where("model", key), f"{name} setting", key, types))
        try:
            checked[key] = TypeAdapter(types[key]).validate_python(value)
        except ValidationError as error:
            raise SettingError(
                f"{where('model', key)}{name} setting {key}={shown(value)}: "
                f"{error.errors()[0]['msg']}"
            ) from None
    return checked
