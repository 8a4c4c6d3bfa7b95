"""Node state: declared columns (memory and mail, mostly), with explicit versions."""

from tidegraph.state.columns import (
    Column,
    RingPush,
    RowWrite,
    StateWrites,
    memory_columns,
    memory_writes,
)
from tidegraph.state.host_state import HostState
from tidegraph.state.node_state import NodeState, VersionError
from tidegraph.state.scratch import ScratchRows
from tidegraph.state.versions import PastVersions, Replaced

__all__ = [
    "Column",
    "HostState",
    "NodeState",
    "PastVersions",
    "Replaced",
    "RingPush",
    "RowWrite",
    "ScratchRows",
    "StateWrites",
    "VersionError",
    "memory_columns",
    "memory_writes",
]
