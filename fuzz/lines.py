"""Hostile command lines, from typer's own description of every command."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, get_args, get_type_hints

import typer

from attnscope.cli import app
from fuzz import hostile

SMALL: dict[str, tuple[str, ...]] = {
    "model": ("MODEL",),
    "text": ("TEXT",),
    "ids": ("IDS",),
    "lengths": ("2,4", "4"),
    "layers": ("1", "0", "1"),
    "samples": ("1", "2"),
    "tol": ("1e-2",),
    "particles": ("4",),
    "tokens": ("3", "4"),
    "dim": ("2", "4"),
    "time": ("0.1", "1"),
    "frames": ("2", "3"),
    "starts": ("1", "2"),
    "steps": ("1", "2"),
    "restarts": ("1",),
    "images": ("1", "2"),
    "watched": ("1", "2"),
    "hidden": ("4",),
    "batch": ("4",),
    "most": ("4",),
    "radii": ("0.5,1",),
    "radius": ("1", "0.5"),
    "eps": ("36/255", "0.1"),
    "attention": ("softmax", "l2", "sigmoid", "sinkhorn", "linear", "exponential"),
    "scores": ("identity", "random", "low-rank", "NPY"),
    "values": ("identity", "random", "skew", "NPY"),
    "space": ("euclidean", "sphere", "GAINS"),
    "method": ("DOP853", "RK45"),
    "data": ("digits", "NPZ", "PICTURES"),
    "checkpoint": ("NETWORK",),
    "control": ("NETWORK",),
    "cloud": ("CLOUD",),
    "file": ("STACK",),
    "folder": ("RUN",),
    "threads": ("1",),
    "heads": ("1", "2"),
    "depth": ("1",),
    "patch": ("2",),
    "names": ("list", "ellipses", "equivariance"),
    "out": ("out",),
}
"""Values that make a run short. Capitals stand for files of the workshop."""
LONG = (
    "steps", "images", "particles", "most", "lengths", "samples", "starts", "watched", "model",
    "text", "frames", "tokens", "layers", "restarts", "checkpoint", "dim",
)  # fmt: skip
"""Options that are always passed, lest a case take minutes."""
HOSTILE = {
    "device": hostile.DEVICES,
    "seed": hostile.SEEDS,
    "threads": hostile.THREADS,
    "lengths": hostile.RANGES,
    "layers": hostile.RANGES,
    "heads": hostile.RANGES,
    "eps": hostile.FRACTIONS,
    "radii": hostile.FRACTIONS,
}


def commands() -> dict[str, Any]:
    """Every command of the program, as the option parser sees it."""
    return dict(sorted(typer.main.get_command(app).commands.items()))  # type: ignore[attr-defined]


def line(
    rng: Random, goods: dict[str, Path], bad_file: str | None = None, rare: float = 0.3
) -> list[str]:
    """A command line with a few hostile values; or with none but one that reads this file.

    `bad_file` is the option that gets a hostile file: its place is left as HOSTILE-FILE. `rare` is
    how often an option that need not be there has a good value.
    """
    known = commands()
    weights = [len(each.params) for each in known.values()]
    name = rng.choices(list(known), weights)[0] if bad_file is None else bad_file.split()[0]
    options = [each for each in known[name].params if each.name != "help"]
    count = rng.choice((0, 1, 1, 1, 2, 3)) if bad_file is None else 0
    chosen = {each.name for each in rng.sample(options, min(count, len(options)))}
    kinds = _kinds(known[name])
    spoilt = None if bad_file is None else bad_file.split()[1]
    words = [name]
    for each in options:
        if each.name == spoilt:
            words += _said(each, "HOSTILE-FILE")
        elif each.name in chosen:
            words += _said(each, _hostile(each, kinds.get(each.name, ()), rng))
        elif each.param_type_name == "argument":
            words += _good(each, rng, goods) if each.required or rng.random() < rare else []
        elif each.name in LONG or rng.random() < rare:
            words += _good(each, rng, goods)
    if rare and rng.random() < 0.05:
        words.insert(rng.randrange(len(words) + 1), hostile.mixed(rng))
    return words


def _said(option: Any, value: str) -> list[str]:
    """The words that give an option its value; a value that looks like an option is glued on."""
    if option.param_type_name == "argument":
        return [value]
    opts = [word for word in option.opts if word.startswith("--")] or option.opts
    if getattr(option, "is_flag", False):
        return [opts[0]]
    return [f"{opts[0]}={value}"] if value.startswith("-") else [opts[0], value]


def _good(option: Any, rng: Random, goods: dict[str, Path]) -> list[str]:
    if getattr(option, "is_flag", False):
        return [rng.choice([*option.opts, *option.secondary_opts])]
    known = SMALL.get(option.name)
    if known is not None:
        value = rng.choice(known)
        if value == "2" and option.name == "radius":
            value = "1"
        return _said(option, str(goods.get(value, value)))
    if option.default is not None and not callable(option.default):
        return _said(option, str(option.default))
    return []


def _hostile(option: Any, kinds: tuple[type, ...], rng: Random) -> str:
    if rng.random() < 0.1:
        return hostile.mixed(rng)
    known = HOSTILE.get(option.name)
    if known is not None:
        return rng.choice(known)
    if int in kinds:
        return rng.choice(hostile.WHOLE)
    return rng.choice(hostile.REAL if float in kinds else hostile.NAMES)


def _kinds(command: Any) -> dict[str, tuple[type, ...]]:
    """The types that each option may have, as the command declares them."""
    hints = get_type_hints(command.callback)
    return {name: get_args(hint) or (hint,) for name, hint in hints.items()}
