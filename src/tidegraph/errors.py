"""The errors Tidegraph raises for the person at the keyboard.

Every message says what was found, where, what was expected and what to do. The command line
prints the message alone and exits with `exit_code`; the Python API raises the exception.
"""

from __future__ import annotations


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
