"""The entry point: which command, its flags, and what becomes of errors.

Only the module of the command that was asked for is imported; of the others the one-line help
stands here. Errors that a user can mend are one message and exit code 2; everything else is a bug
and shows its traceback.
"""

from __future__ import annotations

import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from tidegraph.errors import TidegraphError

INTERRUPTED = 130
_BROKEN_PIPE = 141
_LONGEST_MESSAGE = 4000
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# About the named file rather than this program.
_OF_THE_FILE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR,
                errno.EISDIR, errno.ELOOP)  # fmt: skip

# Options that take one or more values: `--features f0 f1`, as well as `--features f0 --features f1`
_SEVERAL = ("--features", "--categorical", "--nodes", "--known", "--models", "--test-negatives",
            "--neighbor-types")  # fmt: skip


@dataclass(frozen=True)
class Command:
    """One command: where it is, and its help in one line."""

    module: str
    help: str


COMMANDS = {
    "train": Command("train", "Train a model on a table of events, evaluate it and keep the run."),
    "evaluate": Command("evaluate", "Evaluate a finished run on its test split."),
    "compare": Command("compare", "Train and evaluate several models alike; one table of figures."),
    "predict": Command("predict", "Score new events or candidate pairs with a finished run."),
    "embed": Command("embed", "Write node embeddings of a finished run."),
    "ingest": Command("ingest", "Read a table once into a directory that opens instantly."),
    "describe": Command("describe", "Say what was understood of a table, data set or store."),
    "datasets": Command("datasets", "List the data sets that can be used by name."),
    "models": Command("models", "List the models that can be trained, and the baselines."),
    "bench": Command("bench", "Measure the parts of a training step on this machine."),
}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a line on how to go on."""

    def __init__(self, advice: str) -> None:
        super().__init__(advice)
        self.advice = advice


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 0, 2 (an error to mend), 130 (Ctrl-C) or a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app = build_app(given)  # loads libraries, for seconds
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    app(spread(given), prog_name="tidegraph")


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The app with the asked-for command in full and the others by name and help."""
    asked = next((word for word in arguments if not word.startswith("-")), None)
    app = typer.Typer(
        name="tidegraph",
        help="Temporal graph neural networks on streams of timestamped events.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: bool = typer.Option(
            False,
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ) -> None:
        pass  # fmt: skip

    for name, command in COMMANDS.items():
        run: Callable[..., Any] = _unloaded
        if name == asked:
            module = importlib.import_module(f"tidegraph.cli.{command.module}")
            run = _guarded(module.command())
        app.command(name, help=command.help)(run)
    return app


def spread(arguments: Sequence[str]) -> list[str]:
    """Repeat an option that takes several values before each of them.

    >>> spread(["train", "a.csv", "--features", "f0", "f1", "--label", "y"])
    ['train', 'a.csv', '--features', 'f0', '--features', 'f1', '--label', 'y']
    """
    result: list[str] = []
    option, fresh = "", False
    for word in arguments:
        if word.startswith("-") and word != "-":
            option, fresh = (word if word in _SEVERAL else ""), True
        elif option and not fresh:
            result.append(option)
        else:
            fresh = False
        result.append(word)
    return result


def report_error(message: str) -> None:
    """One error message on stderr; whatever it quotes, it stays one that can be read."""
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}... ({len(message):,} characters)"
    print(f"error: {message}", file=sys.stderr)


def _guarded(run: Callable[..., Any]) -> Callable[..., Any]:
    """What becomes of exceptions; the flags stay those of `run`."""

    @functools.wraps(run)
    def guarded(**flags: Any) -> None:
        try:
            run(**flags)
            sys.stdout.flush()
        except TidegraphError as error:
            report_error(str(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as interrupt:
            advice = getattr(interrupt, "advice", "nothing was kept")
            print(f"\nstopped; {advice}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader went away (`| head`). Whatever is still buffered must not raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_BROKEN_PIPE) from None
        except (MemoryError, RuntimeError) as error:
            if not _is_of_memory(error):
                raise
            report_error(
                f"there is not enough memory ({_first_line(error)}): choose smaller batches, fewer "
                "candidates or neighbours, or narrower vectors"
            )
            raise typer.Exit(2) from None
        except OSError as error:
            if error.errno in _OF_THE_FILE and error.filename is not None:
                report_error(f"{error.filename}: {error.strerror}")
                raise typer.Exit(2) from None
            if error.errno not in _NO_ROOM:
                raise
            report_error(
                f"{error.filename or 'a file'} cannot be written: {error.strerror}. Free some "
                "space; what was complete before is unchanged"
            )
            raise typer.Exit(2) from None

    return guarded


def _is_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; PyTorch says so in the text of a plain RuntimeError."""
    said = str(error)
    return isinstance(error, MemoryError) or any(
        text in said for text in ("can't allocate memory", "out of memory", "size calculation over")
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:300]


def _unloaded() -> None:
    """Stands for a command that was not asked for."""


def _print_version(asked: bool) -> None:
    if asked:
        from tidegraph import __version__

        print(f"tidegraph {__version__}")
        raise typer.Exit
