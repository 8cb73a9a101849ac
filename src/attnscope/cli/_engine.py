"""Where a command's cells run, from its options."""

from __future__ import annotations

from pathlib import Path

from attnscope.studies.cache import OFF, Cache
from attnscope.studies.engines import Engine, Here, Local

ENGINES = ("here", "local", "dask")
ENGINE = "Where cells run: here (this process), local (processes of this machine), dask."
WORKERS = "Processes of the engine local (default: one per core)."
SCHEDULER = "Address of the scheduler of the engine dask, such as tcp://10.0.0.1:8786."
CACHE = 'Folder of known results of other folders, or "off" (default: ATTNSCOPE_CACHE, ~/.cache).'


def engine_of(engine: str, workers: int | None, scheduler: str | None) -> Engine:
    """The engine of these options."""
    if engine not in ENGINES:
        raise ValueError(f"--engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    if workers is not None and engine != "local":
        raise ValueError(f"--workers goes with --engine local, got --engine {engine}.")
    if (scheduler is not None) != (engine == "dask"):
        raise ValueError(
            "--scheduler ADDRESS goes with --engine dask: start one with `dask scheduler`, and pass"
            " the address that it prints."
        )
    if engine == "dask":
        from attnscope.studies.engines.dask import Dask

        return Dask(scheduler)
    return Local(workers) if engine == "local" else Here()


def cache_of(named: str | None) -> Cache | None:
    """The cache of this option: the user's own if it is left out."""
    if named is None:
        return Cache.of_user()
    return None if named.lower() == OFF else Cache(Path(named))
