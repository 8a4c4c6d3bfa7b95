"""`import tidegraph` is light: libraries load where they are used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after running `code`."""
    command = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


def test_import_alone_loads_no_library() -> None:
    heavy = {"torch", "numba", "numpy", "duckdb", "pyarrow", "matplotlib", "triton", "sklearn",
             "pandas", "polars", "typer", "rich"}  # fmt: skip
    assert loaded_by("import tidegraph") & heavy == set()


@pytest.mark.parametrize("name", ["Trainer", "load_run", "Events", "TemporalIndex"])
def test_training_loads_no_reader_and_no_drawing(name: str) -> None:
    heavy = {"duckdb", "matplotlib", "triton", "sklearn", "pandas", "polars"}
    assert loaded_by(f"import tidegraph; tidegraph.{name}") & heavy == set()


def test_the_train_command_loads_no_drawing_until_it_draws() -> None:
    heavy = {"duckdb", "matplotlib", "sklearn", "pandas", "polars"}
    assert loaded_by("import tidegraph.cli.train") & heavy == set()


def test_every_public_name_is_there() -> None:
    import tidegraph

    for name in tidegraph.__all__:
        assert getattr(tidegraph, name) is not None


def test_a_model_of_shapes_alone_does_not_load_the_compiler() -> None:
    """What `train` asks before it starts; loading PyTorch's compiler takes two seconds."""
    code = (
        "import sys, torch\n"
        "from tidegraph.events.core import Schema\n"
        "from tidegraph.models import MODELS, build_model\n"
        "schema = Schema(num_nodes=4, num_sources=2, bipartite=True, event_features=3)\n"
        "for name in ('tgn', 'tgat', 'jodie'):\n"
        "    with torch.device('meta'):\n"
        "        build_model(name, schema)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_kernels_can_be_imported_without_a_compiler() -> None:
    """For debuggers and coverage, which want Python."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "import tidegraph.ops"],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
