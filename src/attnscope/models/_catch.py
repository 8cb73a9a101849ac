"""Catching what a module inside a running network is called with, and calling it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

FORGOTTEN = (
    "past_key_values",
    "past_key_value",
    "layer_past",
    "cache_params",
    "cache",
    "use_cache",
)
"""Arguments of a layer that make it remember earlier tokens; a map on tokens does without."""


class _Tokens:
    """Stands in a remembered call where the tokens were."""


TOKENS = _Tokens()


@dataclass(frozen=True, eq=False)
class Call:
    """How a module was called: its arguments, with `TOKENS` in the place of the hidden states.

    The hidden states themselves are not kept, so that remembering every layer costs only masks.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def bare(self) -> bool:
        """Whether nothing but the tokens says how many they are: no mask, no angles."""
        others = (*self.args, *self.kwargs.values())
        return all(
            value is TOKENS or value is None or isinstance(value, bool | int | float | str)
            for value in others
        )

    def repeat(self, module: nn.Module, hidden: Tensor) -> Tensor:
        """Call the module the same way on these tokens; the first of several results."""
        args = [hidden if value is TOKENS else value for value in self.args]
        kwargs = {name: hidden if value is TOKENS else value for name, value in self.kwargs.items()}
        return first(module(*args, **kwargs))


def split_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Tensor]:
    """A call and the tokens in it: the first floating-point tensor of at least two axes."""
    hidden = next(tensors(args, kwargs), None)
    if hidden is None:
        raise ValueError(
            "the layer was called without a floating-point tensor, so its tokens cannot be found."
        )

    def kept(value: Any) -> Any:
        return TOKENS if value is hidden else value

    named = {name: kept(value) for name, value in kwargs.items() if name not in FORGOTTEN}
    return Call(tuple(map(kept, args)), named), hidden


def tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The floating-point tensors among the arguments of a call."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
            yield value


def first(out: Any) -> Any:
    """The tokens among the results of a module: the result, or the first of several."""
    return out[0] if isinstance(out, tuple | list) and out else out


class Reached(Exception):
    """Stops a forward pass at the module that was waited for."""


@contextmanager
def hooked(handles: Sequence[Any]) -> Iterator[None]:
    """Hooks that are removed afterwards, whatever happens."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watch(
    modules: Sequence[nn.Module],
    run: Callable[[], object],
    seen: Callable[[int, tuple[Any, ...], dict[str, Any]], None],
) -> None:
    """Run, and report every call of these modules by its number in the order of calls.

    The hooks stand before those of the user, so that what is seen is what the module is handed.
    `seen` may raise `Reached` to stop the run.
    """
    count = 0

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        seen(count - 1, args, kwargs)

    handles = [
        module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        for module in dict.fromkeys(modules)
    ]
    with hooked(handles), torch.no_grad(), suppress(Reached):
        run()


def calls_of(modules: Sequence[nn.Module], run: Callable[[], object]) -> list[tuple[Call, Tensor]]:
    """Every call of these modules during the run, in order, with the tokens it got."""
    found: list[tuple[Call, Tensor]] = []
    watch(modules, run, lambda _, args, kwargs: found.append(split_call(args, kwargs)))
    return found


def tokens_at(
    modules: Sequence[nn.Module], numbers: Sequence[int], run: Callable[[], object]
) -> dict[int, Tensor]:
    """The tokens of some calls of these modules, counted from 0; the run stops after the last."""
    found: dict[int, Tensor] = {}

    def seen(count: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if count in numbers:
            # A layer may go on to write into its tokens.
            found[count] = split_call(args, kwargs)[1].clone()
        if count == max(numbers):
            raise Reached

    watch(modules, run, seen)
    if missing := set(numbers) - set(found):
        raise ValueError(f"the forward pass never reached layer {min(missing)}.")
    return found


def cause(error: BaseException) -> str:
    """What went wrong inside another library, in one line without a full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = lines[0].split(" For details")[0].rstrip(".:")
    return f"{type(error).__name__} {said}" if isinstance(error, KeyError) else said
