"""`Stop`: one way to end any long work early, by Ctrl-C or by SIGTERM."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
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
"""Seconds after the first signal came at which the process ends, whatever it is doing."""
CALLED_OFF = b"\0"
"""What is sent where signals come, as no signal has this number, when nothing is to end any more.
"""


@final
class Stop:
    """The first signal asks to stop, which the work does after its current step; the second, or a
    step that takes longer than `PATIENCE`, raises KeyboardInterrupt at once. A step that goes on
    all the same, or that is one long product in which Python hears nothing, ends with the process
    after `LAST`: a store survives that. Only a call that holds the interpreter outlasts it, which
    no product of torch does.

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
            before = {number: signal.signal(number, self._heard) for number in HEARD}
        except ValueError:  # not in the main thread: signals are someone else's
            yield
            return
        loud, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            with _guarded():
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
        for line in _lines:
            line.send(CALLED_OFF)

    def _heard(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.signal = number
        self._ring_after(PATIENCE)
        self._say("stopping after this step; once more stops at once, what is stored is kept")

    def _ring_after(self, seconds: float) -> None:
        """Let SIGALRM come then, and again after as long a time; 0 calls it off."""
        if TIMED:
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


@contextmanager
def _guarded() -> Iterator[None]:
    """While inside, a thread ends the process `LAST` after the first signal. Python runs a handler
    between two products; the number of the signal is on the line, and the thread awake, at once.
    """
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    threading.Thread(target=_guard, args=[ear], daemon=True).start()
    before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    _lines.append(mouth)
    try:
        yield
    finally:
        if mouth in _lines:  # it is the parent's in a forked child
            _lines.remove(mouth)
            signal.set_wakeup_fd(before)
            mouth.shutdown(socket.SHUT_RDWR)  # a child may hold it open
            mouth.close()


def _guard(ear: socket.socket) -> None:
    """End the process unless the end is called off, or the line closed, in time."""
    code, end = 0, math.inf
    with ear:
        while True:
            ear.settimeout(None if math.isinf(end) else max(end - time.monotonic(), 1e-3))
            try:
                heard = ear.recv(1)
            except TimeoutError:
                os._exit(code)
            if not heard:
                return
            if heard == CALLED_OFF:
                end = math.inf
            elif heard[0] in SIGNALS and math.isinf(end):
                code, end = 128 + heard[0], time.monotonic() + LAST


_lines: list[socket.socket] = []
"""Where signals are told to the guards of this process; the last one is in use."""


def _on_its_own() -> None:
    """A forked child has the line of its parent, whom a signal to the child is not to end."""
    if _lines:
        signal.set_wakeup_fd(-1)
        _lines.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_on_its_own)
