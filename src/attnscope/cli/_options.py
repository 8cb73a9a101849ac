"""What is asked of the options of every command, by their types and names, before it runs; and how
options of several numbers are read.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

LARGEST = 2**31 - 1
"""Whole numbers other than seeds; no machine holds more of anything that is counted here."""
LARGEST_SEED = 2**32 - 1
"""Every generator takes seeds up to here."""
THREADS_PER_CORE = 4
MOST_FOLDERS = 200
"""In which a path may be nested."""
MOST_NUMBERS = 100_000
"""That an option such as --lengths may list."""


def checked(command: Callable[..., None]) -> Callable[..., None]:
    """The command behind the checks that all commands share."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        check(options)
        command(**options)

    # the parser reads names and types of the options from here
    run.__signature__ = inspect.signature(command, eval_str=True)  # type: ignore[attr-defined]
    return run


def check(options: Mapping[str, Any]) -> None:
    """Refuse what no command could use, with the option's name."""
    for name, value in options.items():
        said = "--" + name.replace("_", "-")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{said} must be a finite number, got {value}.")
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"{said} must be text without zero bytes, got {value!r}.")
        if isinstance(value, str) and value.count("/") > MOST_FOLDERS:
            raise ValueError(
                f"{said} must not lie more than {MOST_FOLDERS} folders deep, got"
                f" {value.count('/')}."
            )
        if isinstance(value, int) and not isinstance(value, bool):
            _check_whole(name, said, value)
    if options.get("device") is not None:
        check_device(options["device"])


def _check_whole(name: str, said: str, value: int) -> None:
    if name == "threads":
        most = THREADS_PER_CORE * (os.cpu_count() or 1)
        if not 1 <= value <= most:
            raise ValueError(
                f"{said} must be a number from 1 to {most}, {THREADS_PER_CORE} for each core of"
                f" this machine, got {value}."
            )
    elif name == "seed":
        if not 0 <= value <= LARGEST_SEED:
            raise ValueError(
                f"{said} must be a whole number from 0 to {LARGEST_SEED}, got {value}."
            )
    elif abs(value) > LARGEST:
        raise ValueError(f"{said} must be a whole number up to {LARGEST}, got {value}.")


def check_device(device: str) -> None:
    """Refuse a device on which nothing can be computed here."""
    import torch  # after the options have been read: help and mistakes do not wait for it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of devices that are given up
            works = float(torch.ones(2, device=device).sum()) == 2
    except Exception as error:  # each backend that is missing has an error of its own
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"--device {device!r} cannot be used here ({cause[:200]}): leave it out to compute on"
            " the CPU."
        ) from error
    if not works:
        raise ValueError(f"--device {device!r} computes 1 + 1 wrongly: leave it out.")


def numbers(name: str, given: str) -> list[int]:
    """Whole numbers and start:stop:step ranges, separated by commas; sorted, each once.

    Ranges are counted before they are built.
    """
    ranges = [_range(name, given, piece) for piece in given.split(",")]
    # not len(): it fails beyond the largest machine number
    count = sum(max(0, -((piece.start - piece.stop) // piece.step)) for piece in ranges)
    if count > MOST_NUMBERS:
        raise ValueError(
            f"{name} takes at most {MOST_NUMBERS} numbers, got {count} of them in {given!r}: choose"
            " a larger step."
        )
    found = {number for piece in ranges for number in piece}
    if not found:
        raise ValueError(f"{name} {given!r} holds no number: the stop of a range is not included.")
    if max(map(abs, found)) > LARGEST:
        raise ValueError(f"{name} takes whole numbers up to {LARGEST}, got {given!r}.")
    return sorted(found)


def _range(name: str, given: str, piece: str) -> range:
    try:
        ends = [int(end) for end in piece.split(":")]
    except ValueError:
        raise ValueError(
            f"{name} takes whole numbers and start:stop:step ranges such as 2:100:2 or 0,6, got"
            f" {given!r}."
        ) from None
    if len(ends) > 3 or (len(ends) == 3 and ends[2] < 1):
        raise ValueError(
            f"{name} takes ranges start:stop:step with a step of at least 1, got {piece!r}."
        )
    return range(ends[0], ends[0] + 1) if len(ends) == 1 else range(*ends)


def fraction(name: str, given: str) -> float:
    """A finite number, or a fraction of two such as 36/255."""
    above, slash, below = given.strip().partition("/")
    try:
        value = float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            f"{name} must be a number or a fraction such as 36/255, got {given!r}."
        ) from None
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {given!r}.")
    return value
