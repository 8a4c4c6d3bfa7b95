"""`CacheSettings`: which rows a device keeps, for any number of tables under one budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tidegraph.errors import SettingError
from tidegraph.features.residents import Frequent, NextUse, Residents

Policy = Literal["next-use", "lru", "frequency"]


@dataclass(frozen=True)
class CacheSettings:
    """How the tables of one run are cached.

    Attributes:
        policy: "next-use": what is needed soonest, as far as batches are prepared ahead, then what
            was used last; "lru": what was used last; "frequency": the most used rows, chosen ahead.
        share: of each table's rows, from 0 to 1.
        window: batches prepared ahead of the executed one, for "next-use".

    Raises:
        SettingError: a value out of range.

    >>> CacheSettings("lru", share=0.25).residents(10).slots
    2
    """

    policy: Policy = "next-use"
    share: float = 0.1
    window: int = 64

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise SettingError(
                f"cache policy {self.policy!r}: expected one of {', '.join(get_args(Policy))}"
            )
        if not 0 <= self.share <= 1:
            raise SettingError(f"cache share={self.share}: expected a number from 0 to 1")
        if self.window < 0:
            raise SettingError(f"cache window={self.window}: expected 0 or more")

    @property
    def ahead(self) -> int:
        """Batches to prepare ahead: only one policy looks at them."""
        return self.window if self.policy == "next-use" else 0

    def residents(self, rows: int) -> Residents:
        """Slots and policy for a table of so many rows."""
        slots = int(self.share * rows)
        if self.policy == "frequency":
            return Frequent(rows, slots)
        return NextUse(rows, slots, self.ahead)
