"""Models of one's own: a class in a Python file, named `path/to/file.py:Class`.

The file is executed when the name is used. Its absolute path is the model's name from then on, so
that a run finds it again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from tidegraph.errors import CheckpointError, SettingError
from tidegraph.models.base import TemporalModel

_LOADED: dict[str, type[TemporalModel]] = {}


def is_own(name: str) -> bool:
    """Whether `name` has the form `file.py:Class`.

    >>> is_own("models/mine.py:Mine"), is_own("tgn")
    (True, False)
    """
    file, colon, _ = name.rpartition(":")
    return bool(colon) and file.endswith(".py")


def short_name(name: str) -> str:
    """A model's name without its file, for tables and directories.

    >>> short_name("/home/me/mine.py:Mine"), short_name("tgn")
    ('mine', 'tgn')
    """
    return name.rpartition(":")[2].lower() if is_own(name) else name


def own_class(name: str) -> type[TemporalModel]:
    """The class that `file.py:Class` names; the file is executed once per process.

    Raises:
        SettingError: no such file, no such class in it, or a class that is no `TemporalModel`.
    """
    file, _, wanted = name.rpartition(":")
    path = Path(file).resolve()
    full = f"{path}:{wanted}"
    if full in _LOADED:
        return _LOADED[full]
    if not path.is_file():
        raise SettingError(f"model {name}: there is no file {path}")
    found = getattr(_module(path), wanted, None)
    if not (isinstance(found, type) and issubclass(found, TemporalModel)):
        raise SettingError(
            f"model {name}: {path.name} has no class {wanted} derived from "
            "tidegraph.models.TemporalModel"
        )
    found.name = full
    _LOADED[full] = found
    return found


def _module(path: Path) -> object:
    """The executed file; its directory is no package, so its name is made of the whole path."""
    name = f"tidegraph_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints of its classes are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_outside(name: str, checkpoint: Path) -> None:
    """Refuse to execute a file that came along with the run that names it.

    Raises:
        CheckpointError: the file lies in the run's directory.
    """
    run = checkpoint.resolve().parent.parent
    if run in Path(name.rpartition(":")[0]).resolve().parents:
        raise CheckpointError(
            f"{checkpoint} is of the model {name}, whose code lies in the run itself and is not "
            "executed: read it, and move it elsewhere, or give load_run(..., model=...)"
        )
