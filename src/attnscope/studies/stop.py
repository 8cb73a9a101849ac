"""`Stop`: one way to end any long work early, by Ctrl-C or by SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TIMED = hasattr(signal, "setitimer")  # not on Windows
HEARD = (*SIGNALS, signal.SIGALRM) if TIMED else SIGNALS
PATIENCE = 10.0
"""Seconds that the current step gets to end by itself: who sends SIGTERM sends SIGKILL soon after,
often in half a minute.
"""
LAST = 25.0
"""Seconds after the first signal was heard at which the process ends, whatever it is doing."""


@final
class Stop:
    """The first signal asks to stop, which the work does after its current step; the second, or a
    step that takes longer than `PATIENCE`, raises KeyboardInterrupt at once. A step that goes on
    all the same ends with the process after `LAST`: a store survives that. A signal that comes
    inside one long product is heard when that ends.

    Args:
        say: Told one sentence when the first signal comes.
    """

    def __init__(self, say: Callable[[str], None] = lambda sentence: None) -> None:
        self.signal: int | None = None
        """The first signal that came."""
        self._say = say
        self._end: threading.Timer | None = None

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
            before = {number: signal.signal(number, self._heard) for number in HEARD}
        except ValueError:  # not in the main thread: signals are someone else's
            yield
            return
        loud, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            yield
        finally:
            self._ring_after(0)
            sys.unraisablehook = loud
            for number, handler in before.items():
                signal.signal(number, handler)

    @staticmethod
    def _unraisable(problem: sys.UnraisableHookArgs) -> None:
        """Where Python cannot raise, as in a finaliser, an interrupt is lost: it comes again."""
        if not issubclass(problem.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(problem)

    def step_ended(self) -> None:
        """The work has stopped by itself: what is left, its tables, may take its time."""
        self._ring_after(0)

    def _heard(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.signal = number
        self._ring_after(PATIENCE)
        self._say("stopping after this step; once more stops at once, what is stored is kept")

    def _ring_after(self, seconds: float) -> None:
        """Let SIGALRM come then, and again after as long a time, and the last end after it; 0 calls
        all of it off.
        """
        if TIMED:
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        if self._end is not None:
            self._end.cancel()
        self._end = threading.Timer(LAST, os._exit, [self.exit_code]) if seconds else None
        if self._end is not None:  # python hears a signal between two products, a thread at once
            self._end.daemon = True
            self._end.start()
