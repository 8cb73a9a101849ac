"""`Stop`: one way to end any long work early, by Ctrl-C or by SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
class Stop:
    """The first signal asks to stop, which the work does after its current step; the second raises
    KeyboardInterrupt at once.

    Args:
        say: Told one sentence when the first signal comes.
    """

    def __init__(self, say: Callable[[str], None] = lambda sentence: None) -> None:
        self.signal: int | None = None
        """The first signal that came."""
        self._say = say

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that a signal ended: 130 or 143; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, signals come here; afterwards they go where they went before."""
        try:
            before = {number: signal.signal(number, self._heard) for number in SIGNALS}
        except ValueError:  # not in the main thread: signals are someone else's
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.signal = number
        self._say("stopping after this step; once more stops at once, what is stored is kept")
