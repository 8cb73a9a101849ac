"""CPU time of one thread, the two sides in turn, medians: machines are shared and noisy, so only
ratios are kept.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


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


def peak_memory() -> float:
    """The peak resident memory of this process, in bytes. (What getrusage says may be the peak of
    the parent.)
    """
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) * 1024
