"""What the machine has: cores, memory, and how it says that there is not enough."""

from __future__ import annotations

import contextlib
import os

OUT_OF_MEMORY = ("allocate memory", "out of memory", "Storage size calculation overflowed")
"""How torch says that there is not enough memory."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_memory(share: float = 1.0) -> None:
    """Take no more than this share of the machine's memory, so that an absurd size is an error and
    not the end of other programs.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = int(share * machine)
        if soft == resource.RLIM_INFINITY or soft > most:
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error says that there is not enough memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
