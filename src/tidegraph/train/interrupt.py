"""Ctrl-C within a batch: it is finished and a checkpoint saved before training stops.

A checkpoint in the middle of a batch would not be exact. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed while `held`; outside of that it raises as always."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Ctrl-C is remembered in `asked` instead of raised, once.

        Only where Python's own handler is in place, in the main thread: a program that handles
        signals itself goes on doing so.
        """
        usual = signal.default_int_handler
        mine = threading.current_thread() is threading.main_thread()
        if not mine or signal.getsignal(signal.SIGINT) is not usual:
            yield
            return

        def remember(number: int, frame: FrameType | None) -> None:
            if self.asked:
                usual(number, frame)
            self.asked = True

        signal.signal(signal.SIGINT, remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)
