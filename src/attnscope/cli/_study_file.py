"""A study as a TOML file: what a sweep is asked."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import Any

from attnscope.cli._options import numbers
from attnscope.studies.sweep import SweepConfig

NAMED_HEADS = ("none", "longest", "all")
NUMBERS = ("lengths", "layers", "heads")
NAMES = ("models", "texts", "parts")
KINDS: dict[str, tuple[type, ...]] = {
    "samples": (int,),
    "seed": (int,),
    "shard": (int,),
    "tol": (float, int),
    "failure_probability": (float, int),
    "estimate": (bool,),
    "released": (bool,),
    "bounds": (bool,),
    "device": (str,),
    "dtype": (str,),
}
KEYS = (*(field.name for field in dataclasses.fields(SweepConfig)), "estimate")
LARGEST_FILE = 2**20


def read_study(path: Path) -> SweepConfig:
    """The sweep that a file asks for. Names of files are looked for beside it first."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the study {str(path)!r} is larger than a megabyte.")
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"the study {str(path)!r} cannot be read ({reason}).") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the study {str(path)!r} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the study {str(path)!r} is not TOML: {error}.") from error
    for key in told:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"the study {str(path)!r} has an unknown key {key!r}: did you mean {near!r}? There"
                f" are {', '.join(KEYS)}."
            )
    estimate = _plain("estimate", told.pop("estimate", False))
    fields = {key: _value(key, value, path.parent) for key, value in told.items()}
    if estimate:
        if "failure_probability" in fields:
            raise ValueError("a study gives estimate = true or a failure_probability, not both.")
        fields = {"tol": 1e-6, **fields, "failure_probability": None}
    return SweepConfig(**fields)


def _value(key: str, value: Any, folder: Path) -> Any:
    if key in NAMES:
        return _names(key, value, folder)
    if key == "spans":
        return _spans(value)
    if key not in NUMBERS:
        return _plain(key, value)
    if isinstance(value, str):
        if key == "heads" and value in NAMED_HEADS:
            return value
        return None if key == "layers" and value == "all" else tuple(numbers(key, value))
    whole = isinstance(value, list) and all(type(entry) is int for entry in value)
    if not whole:
        raise ValueError(
            f'{key} must be whole numbers such as [8, 16] or a range such as "2:100:2", got'
            f" {value!r}."
        )
    return tuple(value)


def _names(key: str, value: Any, folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError(f'{key} must be names such as ["a", "b"], got {value!r}.')
    if key == "parts":
        return tuple(value)
    beside = {entry: folder / entry for entry in value if entry.strip()}
    return tuple(
        str(beside[entry]) if entry in beside and beside[entry].exists() else entry
        for entry in value
    )


def _spans(value: Any) -> tuple[tuple[str, str], ...]:
    pairs = isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(end) in (int, str) for end in pair)
        for pair in value
    )
    if not pairs:
        raise ValueError(f'spans must be pairs of places such as [[0, "last"]], got {value!r}.')
    return tuple((str(start), str(stop)) for start, stop in value)


def _plain(key: str, value: Any) -> Any:
    kinds = KINDS[key]
    if type(value) not in kinds:
        raise ValueError(f"{key} must be a {kinds[0].__name__}, got {value!r}.")
    return float(value) if kinds[0] is float else value
