"""Node state: memory and mail vectors, with explicit versions."""

from tidegraph.state.host_state import HostState
from tidegraph.state.node_state import NodeState, VersionError

__all__ = ["HostState", "NodeState", "VersionError"]
