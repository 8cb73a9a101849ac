"""What the public doors check: every error says what was expected, what came and what to do."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import torch
from torch import Tensor

LONGEST_SHOWN = 6
"""Numbers of a tensor and items of a tuple that `brief` shows; of more it says how many."""


def described(value: object) -> str:
    """A value in a few words, for error messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"{type(value).__name__} {value!r}"[:120]


def brief(instance: Any) -> str:
    """A dataclass in a line or two, to be its `__repr__`: tensors by dtype and shape; functions and
    what is absent left out.
    """
    told = (field.name for field in dataclasses.fields(instance) if field.repr)
    parts = {name: getattr(instance, name) for name in told}
    shown = [
        f"{name}={_shown(part)}"
        for name, part in parts.items()
        if not (part is None or inspect.isroutine(part) or (isinstance(part, tuple) and not part))
    ]
    return f"{type(instance).__name__}({', '.join(shown)})"


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        if value.ndim < 2 and value.numel() <= LONGEST_SHOWN:
            numbers = [f"{number:.6g}" for number in value.reshape(-1).tolist()]
            return f"[{', '.join(numbers)}]" if value.ndim else numbers[0]
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, tuple) and value:
        if len(value) > LONGEST_SHOWN or not isinstance(value[0], int | float | str):
            return f"<{len(value)} of {type(value[0]).__name__}>"
        return repr(value)
    return str(value) if isinstance(value, torch.dtype | torch.device) else repr(value)


def parsed(text: str | bytes) -> Any:
    """What JSON of unknown origin says; a ValueError whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def is_dense(value: Tensor) -> bool:
    """Whether a tensor holds its numbers one by one: no sparse one, and none without data."""
    return value.layout == torch.strided and not value.is_meta


def check_tensor(name: str, value: object, shape: str) -> None:
    """Refuse anything but a finite, real floating-point tensor whose number of axes fits `shape`.

    `shape` names the axes, as in "n d"; a leading "..." allows a stack.
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor of shape ({shape}), got {described(value)}. "
            "Convert it with torch.as_tensor(..., dtype=torch.float64)."
        )
    if not value.dtype.is_floating_point:
        raise TypeError(
            f"{name} must hold real floating-point numbers, got {described(value)}. Convert it"
            " first, for example with .to(torch.float64)."
        )
    if not is_dense(value):
        raise TypeError(
            f"{name} must be a dense tensor with data, got {described(value)} with layout"
            f" {value.layout}. Convert it first, for example with .to_dense()."
        )
    axes = shape.replace("...", "").split()
    stacked = shape.startswith("...")
    if value.ndim < len(axes) or (value.ndim > len(axes) and not stacked):
        raise ValueError(f"{name} must have shape ({shape}), got {described(value)}.")
    if 0 in value.shape:
        raise ValueError(
            f"{name} must have shape ({shape}) with no empty axis, got {described(value)}."
        )
    if (
        not torch.stack(torch.aminmax(value.detach())).isfinite().all()
    ):  # one pass: a NaN is both the least and the largest
        bad = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"{name} must be finite, got {bad} NaN or infinite entries out of {value.numel()}."
            " Remove or repair them first."
        )


def check_same_kind(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors of different dtype or device: nothing is converted silently."""
    if value.dtype != other.dtype:
        raise TypeError(
            f"{name} must have the dtype of {other_name}, {other.dtype}, got {value.dtype}. Convert"
            " one of them with .to(...)."
        )
    if value.device != other.device:
        raise ValueError(
            f"{name} must be on the device of {other_name}, {other.device}, got {value.device}."
            " Move one of them with .to(...)."
        )


def check_shape(name: str, value: Tensor, expected: tuple[int, ...], why: str) -> None:
    """Refuse a tensor that does not have exactly the expected shape."""
    if tuple(value.shape) != tuple(expected):
        raise ValueError(
            f"{name} must have shape {tuple(expected)} ({why}), got {described(value)}."
        )


def check_kind(name: str, value: object, *kinds: type) -> None:
    """Refuse anything but an instance of these classes."""
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be of class {wanted}, got {described(value)}.")


def check_positive(name: str, value: object) -> None:
    """Refuse anything but a finite number above zero."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < float("inf")
    ):
        raise ValueError(f"{name} must be a finite number above 0, got {described(value)}.")


def as_generator(generator: torch.Generator | int, device: torch.device) -> torch.Generator:
    """A generator from a seed, or the generator itself."""
    if isinstance(generator, torch.Generator):
        return generator
    if isinstance(generator, bool) or not isinstance(generator, int):
        raise TypeError(
            f"generator must be a torch.Generator or an integer seed, got {described(generator)}."
        )
    return torch.Generator(device=device).manual_seed(generator)
