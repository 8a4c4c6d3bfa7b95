"""The errors Tidegraph raises for the person at the keyboard.

Every message says what was found, where, what was expected and what to do. The command line
prints the message alone and exits with `exit_code`; the Python API raises the exception.
"""

from __future__ import annotations

from collections.abc import Iterable


class TidegraphError(Exception):
    """Base of all errors that a user can cause and a user can mend."""

    exit_code = 2


class InputError(TidegraphError, ValueError):
    """Data that cannot be used: names the file, row, column and value."""


class SettingError(TidegraphError, ValueError):
    """A setting that is unknown, out of range, or would have no effect."""


class UnknownNodeError(TidegraphError, KeyError):
    """A node id that the events (or the model) have never seen."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0]) if self.args else ""


class HistoryError(TidegraphError, ValueError):
    """A query that the kept history cannot answer."""


class CheckpointError(TidegraphError, RuntimeError):
    """A checkpoint that is missing, damaged, or belongs to something else."""


class DownloadError(TidegraphError, OSError):
    """A data set that could not be fetched or whose checksum is wrong."""


class NoLegalNegativeError(TidegraphError, ValueError):
    """No destination is left that is not a true edge at the same source and time."""


def shown(value: object, limit: int = 80) -> str:
    """A value as a message quotes it: its `repr`, cut where it is long.

    Args:
        value: whatever was found.
        limit: characters to show; what is left out is counted.

    >>> shown("u7"), shown("a" * 1_000_000, limit=5)
    ("'u7'", "'aaaaa'... (1,000,000 characters)")
    """
    if isinstance(value, (str, bytes)):
        if len(value) <= limit:
            return repr(value)
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:limit]!r}... ({len(value):,} {unit})"
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def listed(names: Iterable[object], most: int = 30) -> str:
    """Names in a row as a message lists them: long ones cut, and not more than `most`.

    >>> listed(["source", "target"]), listed(range(100), most=3)
    ('source, target', '0, 1, 2, ... (100 in all)')
    """
    every = [str(name) for name in names]
    texts = [t if len(t) <= 80 else f"{t[:80]}... ({len(t):,} characters)" for t in every[:most]]
    return ", ".join(texts) + (f", ... ({len(every):,} in all)" if len(every) > most else "")
