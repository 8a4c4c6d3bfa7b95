"""`NodeIds`: which internal node (0..N-1) is which id of the user's table, in both directions.

Ids are 64-bit integers or text. They are kept as sorted blocks (flat arrays that may be
memory-mapped): one block for one namespace, two for bipartite data (sources, then targets), and
one more for every later batch of events that brought new nodes.

Shape legend: N nodes, Q values asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tidegraph.errors import SettingError, UnknownNodeError, shown
from tidegraph.events.text import TextColumn

_SIDES = ("source", "target")
_SHOWN = 5
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, eq=False)
class IdBlock:
    """Consecutive internal nodes whose original ids are sorted.

    Attributes:
        count: nodes in the block.
        side: "source" or "target" in bipartite data, else "both".
        values: [count] sorted int64, a sorted `TextColumn`, or None where original id and internal
            number are the same.
        was_integer: [count] bool or None: text ids that were integers in a column of mixed types
            and are given back as integers.
    """

    count: int
    side: str = "both"
    values: np.ndarray | TextColumn | None = None
    was_integer: np.ndarray | None = None

    @property
    def is_text(self) -> bool:
        return isinstance(self.values, TextColumn)


@dataclass(frozen=True, eq=False)
class NodeIds:
    """The two-way table between internal nodes and original ids.

    Attributes:
        blocks: sorted blocks; internal numbers run through them in order.
        separate: sources and targets are two namespaces, in which the same id may mean two nodes.
    """

    blocks: tuple[IdBlock, ...]
    separate: bool = False

    @classmethod
    def identity(cls, num_nodes: int) -> NodeIds:
        """Ids that are already internal numbers 0..num_nodes-1."""
        return cls((IdBlock(num_nodes),))

    @classmethod
    def from_values(cls, values: Any) -> NodeIds:
        """One namespace of the distinct `values` (integers or text), sorted.

        >>> NodeIds.from_values(["u7", "A9", "u7"]).to_original([0, 1]).tolist()
        ['A9', 'u7']
        """
        return cls((make_block(values),))

    @classmethod
    def from_sides(cls, sources: Any, targets: Any, *, separate: bool = False) -> NodeIds:
        """Bipartite ids: distinct sources sorted, then distinct targets sorted."""
        blocks = (make_block(sources, side="source"), make_block(targets, side="target"))
        return cls(blocks, separate)

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)

    @property
    def kind(self) -> str:
        """ "integer" or "text"; "mixed" only where text was appended to integers."""
        kinds = {"text" if block.is_text else "integer" for block in self.blocks if block.count}
        return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "integer"

    @property
    def is_identity(self) -> bool:
        """Original ids and internal numbers are the same."""
        return all(block.values is None for block in self.blocks)

    def to_internal(
        self, values: Any, *, side: str | None = None, missing: int | None = None
    ) -> np.ndarray:
        """Internal nodes of original ids.

        Args:
            values: [Q] integers or text, or one of them. Text of plain digits finds integer ids
                and integers find text ids, since a command line only has text.
            side: "source" or "target": look among these only. Needed where the two sides are
                separate namespaces and an id exists in both.
            missing: returned for unknown ids; None raises instead.

        Returns:
            [Q] int32.

        Raises:
            UnknownNodeError: an id is unknown and `missing` is None; names the ids.
            SettingError: an id is both a source and a target and `side` is not given.

        >>> NodeIds.from_values([10**12, 7]).to_internal([7, 10**12]).tolist()
        [0, 1]
        """
        if side is not None and side not in _SIDES:
            raise SettingError(f"side is {side!r}; expected 'source', 'target' or None")
        query = _Query(values)
        node_Q = np.full(len(query), -1, np.int64)
        for first, block in self._starts():
            if side is not None and block.side not in (side, "both"):
                continue
            position_Q = query.find_in(block, first)
            found_Q = position_Q >= 0
            clash_Q = found_Q & (node_Q >= 0)
            if clash_Q.any():
                value = query.values[clash_Q].tolist()[0]
                raise SettingError(
                    f"id {shown(value)} is both a source and a target here, and they are different "
                    "nodes; say which with side='source' or side='target'"
                )
            node_Q[found_Q] = position_Q[found_Q] + first
        unknown_Q = node_Q < 0
        if unknown_Q.any():
            if missing is None:
                raise UnknownNodeError(self._unknown_message(query.values[unknown_Q], side))
            node_Q[unknown_Q] = missing
        return node_Q.astype(np.int32)

    def to_original(self, nodes: Any) -> np.ndarray:
        """Original ids of internal nodes: int64, or an object array of `str` for text ids.

        Raises:
            UnknownNodeError: a number outside 0..N-1.
        """
        node_Q = np.atleast_1d(np.asarray(nodes)).astype(np.int64, copy=False)
        outside_Q = (node_Q < 0) | (node_Q >= len(self))
        if outside_Q.any():
            raise UnknownNodeError(
                f"there is no node {node_Q[outside_Q][0]}; nodes are numbered 0 to {len(self) - 1}"
            )
        kind = self.kind
        result_Q = np.empty(node_Q.shape, np.int64 if kind == "integer" else object)
        for first, block in self._starts():
            here_Q = (node_Q >= first) & (node_Q < first + block.count)
            if here_Q.any():
                result_Q[here_Q] = _originals(block, node_Q[here_Q] - first, first)
        return result_Q

    def extended(self, values: Any, *, side: str = "both") -> NodeIds:
        """These ids plus new ones after them; existing internal numbers stay.

        Args:
            values: distinct ids that are not in the table yet, sorted on the way in.
            side: the side that they belong to in bipartite data.
        """
        block = make_block(values, side=side)
        if block.count == 0:
            return self
        size, last = len(self), self.blocks[-1]
        runs_on = isinstance(block.values, np.ndarray) and np.array_equal(
            block.values, np.arange(size, size + block.count)
        )
        if self.is_identity and runs_on and last.side == side:
            return replace(
                self, blocks=(*self.blocks[:-1], replace(last, count=last.count + block.count))
            )
        return replace(self, blocks=(*self.blocks, block))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that hold the table, by name: what is stored and fingerprinted."""
        named: dict[str, np.ndarray] = {}
        for number, block in enumerate(self.blocks):
            if isinstance(block.values, TextColumn):
                named[f"ids{number}_offsets"] = block.values.offsets
                named[f"ids{number}_data"] = block.values.data
            elif block.values is not None:
                named[f"ids{number}_values"] = block.values
            if block.was_integer is not None:
                named[f"ids{number}_was_integer"] = block.was_integer
        return named

    def _starts(self) -> Iterator[tuple[int, IdBlock]]:
        first = 0
        for block in self.blocks:
            yield first, block
            first += block.count

    def _nodes_of(self, side: str | None) -> np.ndarray:
        """Internal nodes of the blocks of a side."""
        chosen = [np.arange(first, first + block.count) for first, block in self._starts()
                  if side is None or block.side in (side, "both")]  # fmt: skip
        return np.concatenate(chosen) if chosen else np.empty(0, np.int64)

    def _unknown_message(self, unknown: np.ndarray, side: str | None) -> str:
        distinct = list(dict.fromkeys(unknown.tolist()))
        named = ", ".join(shown(value) for value in distinct[:_SHOWN])
        more = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
        what = {None: "node", "source": "source node", "target": "target node"}[side]
        other = {None: None, "source": "target", "target": "source"}[side]
        if other and (self.to_internal(unknown, side=other, missing=-1) >= 0).any():
            place = int(np.argmax(self.to_internal(unknown, side=other, missing=-1) >= 0))
            return (
                f"{shown(unknown.tolist()[place])} is a {other} in these events, not a {side}: are "
                "sources and targets mixed up?"
            )
        node_Q = self._nodes_of(side)
        count = len(node_Q)
        sample = [str(value) for value in self.to_original(node_Q[:1000])]
        close = difflib.get_close_matches(str(distinct[0])[:80], sample, n=1)
        hint = f" Did you mean {shown(close[0])}?" if close and self.kind != "integer" else ""
        example = f" (for example {shown(sample[0])})" if sample else ""
        return (
            f"unknown {what} {named}{more}: not among the {count:,} {what}s of the events"
            f"{example}; give ids as they stand in the table.{hint}"
        )


def id_array(values: Any) -> np.ndarray:
    """Ids as a 1-D array; NumPy alone would turn a list of mixed 7 and "u7" into text."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) or hasattr(values, "__array__"):
        return np.atleast_1d(np.asarray(values)).reshape(-1)
    items = [values] if isinstance(values, str) or not hasattr(values, "__iter__") else list(values)
    if all(isinstance(i, (int, np.integer)) and _INT64.min <= i <= _INT64.max for i in items):
        return np.asarray(items, np.int64)
    array = np.empty(len(items), object)
    array[:] = items
    return array


def make_block(
    values: Any, *, side: str = "both", integers: frozenset[str] | None = None
) -> IdBlock:
    """Sort distinct `values` into a block.

    Args:
        values: integers, or text, or both mixed: then all are kept as text, and the integers are
            given back as integers.
        side: "source", "target" or "both".
        integers: text values that were integers in the input.
    """
    array = id_array(values)
    if array.dtype.kind in "iu" and (array.size == 0 or int(array.max()) <= _INT64.max):
        distinct = np.unique(array.astype(np.int64))
        return IdBlock(len(distinct), side, distinct)
    items = array.tolist()
    given = {str(item) for item in items if isinstance(item, int)}
    if items and all(isinstance(i, int) and _INT64.min <= i <= _INT64.max for i in items):
        return make_block(np.asarray(items, np.int64), side=side)
    texts = sorted({str(item) for item in items})
    was_integer = np.fromiter((t in (integers or given) for t in texts), bool, len(texts))
    column = TextColumn.from_values(texts)
    return IdBlock(len(texts), side, column, was_integer if was_integer.any() else None)


def _originals(block: IdBlock, position_Q: np.ndarray, first: int) -> np.ndarray:
    if block.values is None:
        return position_Q + first
    if isinstance(block.values, np.ndarray):
        return np.asarray(block.values[position_Q])
    result_Q = block.values.take(position_Q)
    if block.was_integer is not None:
        for slot in np.flatnonzero(block.was_integer[position_Q]):
            result_Q[slot] = int(result_Q[slot])
    return result_Q


class _Query:
    """Ids to look up, in the form that each kind of block needs (made once, when needed)."""

    def __init__(self, values: Any) -> None:
        self.values = id_array(values)
        self._text: TextColumn | None = None
        self._integers: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def find_in(self, block: IdBlock, first: int) -> np.ndarray:
        if isinstance(block.values, TextColumn):
            if self._text is None:
                self._text = TextColumn.from_values(self.values.tolist())
            return block.values.find(self._text)
        if self._integers is None:
            self._integers = _as_integers(self.values)
        value_Q, valid_Q = self._integers
        if block.values is None:
            inside_Q = valid_Q & (value_Q >= first) & (value_Q < first + block.count)
            return np.where(inside_Q, value_Q - first, -1)
        if block.count == 0:
            return np.full(len(value_Q), -1, np.int64)
        position_Q = np.searchsorted(block.values, value_Q)
        near_Q = block.values[np.minimum(position_Q, block.count - 1)]
        return np.where(valid_Q & (near_Q == value_Q), position_Q, -1)


def _as_integers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values as int64 and which of them are integers at all."""
    if values.dtype.kind in "iu":
        valid = np.ones(len(values), bool)
        if values.dtype == np.uint64:
            valid = values <= np.uint64(_INT64.max)
        return values.astype(np.int64), valid
    if values.dtype.kind == "f":
        valid = (np.abs(values) < 2.0**63) & (np.floor(values) == values)
        return np.where(valid, values, 0).astype(np.int64), valid
    result, valid = np.zeros(len(values), np.int64), np.zeros(len(values), bool)
    for slot, item in enumerate(values.tolist()):
        number = _exact_integer(item)
        if number is not None and _INT64.min <= number <= _INT64.max:
            result[slot], valid[slot] = number, True
    return result, valid


def _exact_integer(item: Any) -> int | None:
    """The integer that `item` is or spells canonically ("7", not "07" or "7.0"), else None."""
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    if isinstance(item, float):
        return int(item) if item.is_integer() else None
    try:
        number = int(item)
    except (TypeError, ValueError):
        return None
    return number if str(number) == item else None
