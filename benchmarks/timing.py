"""CPU time of one thread, the two sides in turn, medians: machines are shared and noisy, so only ratios are kept."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable


def seconds(*sides: Callable[[], object], repeats: int = 3) -> list[float]:
    """The median CPU time of each side, run one after the other in every round."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats):
        for side, times in zip(sides, taken, strict=True):
            begun = time.process_time()
            side()
            times.append(time.process_time() - begun)
    return [statistics.median(times) for times in taken]


def peak_memory_of(program: str) -> tuple[float, str]:
    """The peak resident memory of a Python program in a process of its own, in bytes, and the last line that it printed."""
    closing = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    done = subprocess.run([sys.executable, "-c", program + closing], capture_output=True, text=True, check=True)
    *_, last, peak = ["", *done.stdout.strip().splitlines()]
    return float(peak), last


def peak_so_far() -> float:
    """The peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
