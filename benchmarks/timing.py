"""CPU time of one thread, the two sides in turn, medians: machines are shared and noisy, so only
ratios are kept.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def seconds(*sides: Callable[[], object], repeats: int = 3) -> list[float]:
    """The median CPU time of each side, run one after the other in every round."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats):
        for side, times in zip(sides, taken, strict=True):
            begun = time.process_time()
            side()
            times.append(time.process_time() - begun)
    return [statistics.median(times) for times in taken]


def last_line_of(program: str, *arguments: str) -> str:
    """The last line that a Python program prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


def cpu_seconds_of(*command: str, **options: Any) -> float:
    """The CPU time of a process and of those that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def forget_peak() -> None:
    """The peak counts from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """The peak resident memory of this process, in bytes. (What getrusage says may be the peak of
    the parent.)
    """
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) * 1024
