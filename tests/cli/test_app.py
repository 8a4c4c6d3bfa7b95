"""The entry point, flags made from settings, and the small commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidegraph as tg
from command import COLUMNS, cli, write_table
from tidegraph.cli import app
from tidegraph.cli.app import COMMANDS, spread
from tidegraph.cli.flags import flag_type, flags_for
from tidegraph.cli.settings import Setting, merge, settings_of
from tidegraph.events import list_datasets
from tidegraph.models import BASELINES, MODELS, model_settings
from tidegraph.presets import PRESETS
from tidegraph.train import TrainSettings


class TestApp:
    def test_help_names_every_command(self) -> None:
        result = cli("--help")
        assert result.code == 0
        assert all(name in result.out and command.help in result.out
                   for name, command in COMMANDS.items())  # fmt: skip

    def test_version(self) -> None:
        assert cli("--version").out.strip() == f"tidegraph {tg.__version__}"

    def test_a_mistyped_command_suggests_the_closest(self) -> None:
        result = cli("trian")
        assert result.code == 2
        assert "train" in result.err

    def test_a_mistyped_flag_suggests_the_closest(self) -> None:
        result = cli("train", "--batchsize", "3")
        assert result.code == 2
        assert "--batch-size" in result.err

    @pytest.mark.parametrize("command", list(COMMANDS))
    def test_every_command_has_help(self, command: str) -> None:
        result = cli(command, "--help")
        assert result.code == 0
        assert COMMANDS[command].help in " ".join(result.out.split())

    def test_help_loads_nothing_heavy(self) -> None:
        check = (
            "import sys; from tidegraph.cli import main\n"
            "try: main(['--help'])\n"
            "except SystemExit: pass\n"
            "heavy = {'torch', 'numba', 'duckdb', 'pyarrow', 'matplotlib', 'numpy'}\n"
            "assert not heavy & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


class TestFlags:
    def test_one_option_may_take_several_values(self) -> None:
        words = ["train", "x.csv", "--features", "a", "b", "--categorical", "c", "--seed", "1", "y"]
        assert spread(words) == [
            "train", "x.csv", "--features", "a", "--features", "b", "--categorical", "c",
            "--seed", "1", "y",
        ]  # fmt: skip

    def test_every_training_and_model_setting_has_a_flag_with_its_help_and_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "250")
        shown = " ".join(cli("train", "--help").out.replace("│", " ").split())
        for name, info in TrainSettings.model_fields.items():
            assert f"--{name.replace('_', '-')} " in shown
            assert (info.description or "") in shown
        for setting in model_settings(tg.models.TGN):
            prefix = "model-" if setting.name == "time" else ""
            assert f"--{prefix}{setting.name.replace('_', '-')} " in shown
            assert setting.help in shown
        assert "(default 0.0005)" in shown

    def test_a_name_that_is_taken_gets_its_section_in_front(self) -> None:
        settings = [Setting("data", "time", str, None, ""), Setting("model", "time", int, 1, "")]
        assert [flag.name for flag in flags_for(settings)] == ["time", "model-time"]

    def test_types_of_flags(self) -> None:
        assert flag_type(int | None) is int
        assert flag_type(bool | None) is bool
        assert flag_type(str | int) is str
        assert flag_type(tuple[str | int, ...]) == list[str]


class TestPresets:
    @pytest.mark.parametrize("name", list(PRESETS))
    def test_every_preset_is_valid(self, name: str) -> None:
        settings = merge({}, preset=name)
        for section in ("model", "training", "split"):
            for key in getattr(PRESETS[name], section):
                assert key in [setting.key for setting in settings_of(section, settings.model)]
                assert settings.given[f"{section}.{key}"] == "preset"


class TestData:
    def test_a_table_is_read_once(self, table: Path) -> None:
        first = cli("describe", table, *COLUMNS, "--json").last
        store = Path(first["data"]["store"])
        before = store.stat().st_mtime_ns
        assert cli("describe", table, *COLUMNS, "--json").last == first
        assert store.stat().st_mtime_ns == before

    def test_other_columns_are_another_stored_copy(self, table: Path) -> None:
        one, two = (cli("describe", table, *COLUMNS, *more, "--json").last["data"]["store"]
                    for more in ([], ["--weight", "hour"]))  # fmt: skip
        assert one != two

    def test_a_damaged_stored_copy_is_read_again(self, table: Path) -> None:
        first = cli("describe", table, *COLUMNS, "--json").last
        manifest = Path(first["data"]["store"]) / "manifest.json"
        manifest.write_text("{}")
        assert cli("describe", table, *COLUMNS, "--json").last == first

    def test_columns_by_position_without_a_header(self, table: Path, here: Path) -> None:
        lines = table.read_text().splitlines()
        Path("bare.csv").write_text("\n".join(lines[1:]))
        by_position = cli("describe", "bare.csv", "--no-header", "--source", "0", "--target", "1",
                          "--time", "2", "--features", "3", "4", "--json")  # fmt: skip
        assert by_position.code == 0, by_position.err
        assert (by_position.last["events"], by_position.last["event_features"]) == (120, 2)

    def test_the_rest_of_the_columns_as_features(self, table: Path) -> None:
        result = cli("describe", table, *COLUMNS, "--features", "rest", "--json")
        assert result.last["event_features"] == 3  # amount, hour, is_fraud; kind is text

    def test_ingest_then_describe_the_store(self, table: Path, here: Path) -> None:
        made = cli("ingest", table, *COLUMNS, "--out", "store", "--json")
        assert made.code == 0, made.err
        assert made.last["description"]["events"] == 120
        assert tg.open_events("store").fingerprint == made.last["fingerprint"]
        assert "120 events, 15 nodes" in cli("describe", "store").out

    def test_ingest_needs_a_place(self, table: Path) -> None:
        result = cli("ingest", table, *COLUMNS)
        assert result.code == 2
        assert "--out DIRECTORY" in result.err

    def test_models(self) -> None:
        result = cli("models", "--json")
        named = [(one["kind"], one["name"]) for one in result.last["models"]]
        assert named == [
            *(("model", name) for name in MODELS),
            *(("baseline", name) for name in BASELINES),
        ]
        assert all(one["about"] for one in result.last["models"])
        assert "jodie" in cli("models").out

    def test_datasets(self) -> None:
        result = cli("datasets", "--json")
        assert [one["name"] for one in result.last["datasets"]] == [
            info.name for info in list_datasets()
        ]
        assert "flights" in cli("datasets").out


def test_bench_measures_every_part() -> None:
    result = cli("bench", "--scale", "0.02", "--batch", "50", "--json")
    assert result.code == 0, result.err
    figures = {figure["name"]: figure for figure in result.last["figures"]}
    assert len(figures) == 8
    assert "its bare matrix products (floor)" in figures
    assert all(figure["milliseconds"] > 0 for figure in figures.values())
    step = figures["training step"]
    assert step["per_second"] == pytest.approx(50 / step["milliseconds"] * 1e3)
    assert json.dumps(result.last)


class TestCache:
    @pytest.fixture
    def cache(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("TIDEGRAPH_CACHE", str(here / "cache"))
        for name in ("kept.csv", "gone.csv", "changed.csv"):
            write_table(here / name)
            assert cli("describe", name, *COLUMNS).code == 0
        Path("gone.csv").unlink()
        write_table(here / "changed.csv", rows=50)
        (here / "cache" / "tables" / ".x.partial-1").mkdir()
        return here / "cache"

    def test_what_is_kept_is_listed_with_sizes(self, cache: Path) -> None:
        found = cli("datasets", "--cached", "--json")
        assert {Path(one["path"]).name.split("-")[0]: one["removable"]
                for one in found.last["cached"]} == {
            "kept": True, "gone": False, "changed": False}  # fmt: skip
        assert all(one["bytes"] > 1000 for one in found.last["cached"])
        shown = cli("datasets", "--cached")
        assert f"copy of {Path('kept.csv').resolve()}" in shown.out
        assert shown.out.count("copy of a table that is gone or has changed") == 2
        assert len(list((cache / "tables").iterdir())) == 4

    def test_what_can_be_read_again_is_removed(self, cache: Path) -> None:
        result = cli("datasets", "--clean")
        assert "1 of 3 removed" in result.out
        left = sorted(path.name for path in (cache / "tables").iterdir())
        assert [name.split("-")[0] for name in left] == [".x.partial", "changed", "gone"]
        assert cli("describe", "kept.csv", *COLUMNS).code == 0

    def test_what_a_killed_process_left_is_removed_a_day_later(self, cache: Path) -> None:
        left = cache / "tables" / ".x.partial-1"
        os.utime(left, (0, 0))
        assert "left unfinished" in cli("datasets", "--clean").out
        assert not left.exists()

    def test_nothing_kept(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGRAPH_CACHE", str(here / "nowhere"))
        assert cli("datasets", "--clean").out.startswith("0 of 0 removed")
        assert not list(here.iterdir())


def test_ctrl_c_while_libraries_load_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app.importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as stopped:
        app.main(["train"])
    assert stopped.value.code == 130
