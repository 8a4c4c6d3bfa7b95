"""The command line: `tidegraph train evaluate predict embed ingest describe datasets bench`.

One module per command. `app` finds the one that was asked for and imports only that, so that help
and errors come at once and heavy libraries load only where they are used.
"""

from tidegraph.cli.app import main

__all__ = ["main"]
