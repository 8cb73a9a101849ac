"""A case in a forked child: limits on memory and time, and what became of it in one word."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

GOOD = ("ok", "refused", "ended")
BAD = ("traceback", "wrong exit code", "silent NaN", "crash", "timeout", "long refusal")
KINDS = GOOD + BAD
"""ok: exit 0. refused: exit 2 and a sentence. ended: a legal but long command that SIGTERM ended as
it should (143).
"""
NAN_FOUND = 99
"""The exit code of a call whose result holds NaN."""
GIVEN = 0.0
"""When files were changed that a case was given: what is in them is not its result, unless it
writes them anew.
"""
ROOM = 3 * 2**30
GRACE = 40.0
PATIENCE = 10
"""Wall clock of a case in time limits, for one that waits and computes nothing."""
LONGEST_SENTENCE = 1200
NAMING = ("In ", "To look at: ")
"""How lines begin that name folders."""


class Outcome(NamedTuple):
    """What became of a case."""

    kind: str
    code: int
    seconds: float
    shown: str


def run(task: Callable[[], object], seconds: float = 3.0, brief: bool = False) -> Outcome:
    """Run the task in a child, in an empty folder of its own that is gone afterwards.

    `seconds` of CPU time, so that a busy machine ends no case early, are allowed before SIGTERM.
    `brief`: what takes longer is killed and counts as ended, whether it would listen or not.
    """
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    work, logs = place / "work", place / "logs"
    work.mkdir()
    logs.mkdir()
    sys.stdout.flush()
    sys.stderr.flush()
    begun = time.monotonic()
    try:
        pid = os.fork()
        if pid == 0:
            _child(task, work, logs, int(3 * seconds) + 30)
        code, ended = _wait(pid, seconds, 0.0 if brief else GRACE)
        if brief and ended and code == -signal.SIGKILL:
            return Outcome("ended", code, seconds, "")
        out, err = (_text(logs / name) for name in ("out", "err"))
        kind = _kind(code, ended, out, err, work)
        return Outcome(kind, code, time.monotonic() - begun, _shown(out, err))
    finally:
        _writable(place)
        shutil.rmtree(place, ignore_errors=True)


def _child(task: Callable[[], object], work: Path, logs: Path, cpu: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(work)
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(logs / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        _limit(cpu)
        socket.socket.connect = _no_network  # type: ignore[method-assign]
        socket.getaddrinfo = _no_network
        task()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 1
        os._exit(code & 0xFF)


def _limit(cpu: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))


def _no_network(*given: object, **named: object) -> None:
    raise OSError("there is no network here")


def _wait(pid: int, seconds: float, grace: float) -> tuple[int, bool]:
    """The exit code (negative: a signal), and whether it was ended: by SIGTERM when its time is
    over, by SIGKILL a grace later.
    """
    begun, over, pause = time.monotonic(), None, 0.001
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), over is not None
        now = time.monotonic()
        if over is None and (_cpu(pid) > seconds or now - begun > PATIENCE * seconds):
            over = now
            if grace:
                os.kill(pid, signal.SIGTERM)
        if over is not None and now - over >= grace:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -signal.SIGKILL, True
        time.sleep(pause)
        pause = min(1.5 * pause, 0.02)


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kind(code: int, ended: bool, out: str, err: str, work: Path) -> str:
    if ended and code == -signal.SIGKILL:
        return "timeout"
    if "Traceback (most recent call last)" in err + out:
        return "traceback"
    if ended and code in (143, -signal.SIGTERM, 0):
        return "ended"
    if code < 0:
        return "crash"
    if code == NAN_FOUND:
        return "silent NaN"
    if code == 0:
        return (
            "silent NaN" if nan_in(out) or any(map(_holds_nan, sorted(work.rglob("*")))) else "ok"
        )
    if code != 2:
        return "wrong exit code"
    return "refused" if _is_sentence(err) else "long refusal"


def nan_in(text: str) -> bool:
    """Whether a number of a table, of CSV or of JSON is NaN; a folder may have that name."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith(NAMING))
    return re.search(r"(?<![\w-])-?nan(?![\w-])", text, re.IGNORECASE) is not None


def _holds_nan(path: Path) -> bool:
    if path.suffix not in (".csv", ".json", ".jsonl") or path.name == "run.json":
        return False
    return path.is_file() and path.stat().st_mtime != GIVEN and nan_in(_text(path))


def _is_sentence(err: str) -> bool:
    """One line that begins with the name of the program, or the box of the option parser."""
    lines = [line for line in err.splitlines() if line.strip()]
    if any(line.startswith("Usage:") for line in lines):
        return len(err) < 4 * LONGEST_SENTENCE
    told = [line for line in lines if line.startswith("attnscope:")]
    return len(told) == 1 and len(lines) == 1 and 20 < len(told[0]) < LONGEST_SENTENCE


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _shown(out: str, err: str) -> str:
    return "\n".join(part[-3000:].rstrip() for part in (out, err) if part.strip())


def _writable(place: Path) -> None:
    """A case may leave folders that nobody may write into."""
    for folder, _, _ in os.walk(place):
        os.chmod(folder, 0o700)
