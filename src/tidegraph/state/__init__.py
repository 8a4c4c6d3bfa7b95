"""Node state: memory and mail vectors, with explicit versions."""

from tidegraph.state.node_state import NodeState, VersionError

__all__ = ["NodeState", "VersionError"]
