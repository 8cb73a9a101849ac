"""One signal ends the work after its step; a step without an end is ended all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from attnscope.studies import stop as stopping
from attnscope.studies.stop import Stop

SHORT = 0.5
"""Seconds of patience: little, but more than a busy machine takes between two statements."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: int) -> None:
    said: list[str] = []
    stop = Stop(said.append)
    with stop.listening():
        os.kill(os.getpid(), number)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert stop.exit_code == 128 + number
    assert len(said) == 1


def test_a_step_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE", SHORT)
    stop = Stop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
    assert stop.exit_code == 143


def test_nothing_rings_after_a_step_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE", SHORT)
    before = [signal.getsignal(number) for number in stopping.HEARD]
    stop = Stop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        stop.step_ended()
        time.sleep(1.5 * SHORT)
    assert [signal.getsignal(number) for number in stopping.HEARD] == before


class _Slow:
    """Its finaliser takes longer than anybody waits."""

    def __del__(self) -> None:
        time.sleep(2.5 * SHORT)


def test_an_interrupt_that_python_cannot_raise_comes_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stopping, "PATIENCE", SHORT)

    def work() -> None:
        _Slow()  # gone at once; the interrupt in its finaliser is lost
        time.sleep(30)

    stop = Stop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            work()
    assert "Traceback" not in capfd.readouterr().err


BEGUN = """
import ctypes, os, signal, sys, threading, time
from attnscope.studies import stop

stop.PATIENCE, stop.LAST = 0.1, 1.0
"""
DEAF = """
with stop.Stop().listening():
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass
"""
IN_C = """
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
with stop.Stop().listening():
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
    libc.pthread_mutex_lock(mutex)  # as a long product does, it returns to Python for no signal
"""
CALLED_OFF = """
work = stop.Stop()
with work.listening():
    os.kill(os.getpid(), signal.SIGTERM)
    work.step_ended()
    time.sleep(2)
sys.exit(7)
"""
CHILD = """
with stop.Stop().listening():
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(2)
sys.exit(7)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals and mutexes of POSIX")
@pytest.mark.parametrize(
    ("program", "code"),
    [
        pytest.param(DEAF, 143, id="a step that goes on ends with the process"),
        pytest.param(IN_C, 143, id="so does one in which Python hears nothing"),
        pytest.param(CALLED_OFF, 7, id="one that has ended does not"),
        pytest.param(CHILD, 7, id="a signal to a child ends no parent"),
    ],
)
def test_the_last_end(program: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", BEGUN + program], capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (code, b"")
