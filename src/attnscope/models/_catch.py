"""Catching what a module inside a running network is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call of a module; `hidden` is the first floating-point tensor among
    them.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def hidden(self) -> Tensor:
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor) and value.is_floating_point():
                return value
        raise ValueError(
            "the layer was called without a floating-point tensor, so its tokens cannot be found."
        )

    def repeat(self, module: nn.Module, hidden: Tensor) -> Any:
        """Call the module the same way with other tokens, without a cache; the first of several
        results.
        """
        old = self.hidden
        args = [hidden if value is old else value for value in self.args]
        kwargs = {
            name: hidden if value is old else value
            for name, value in self.kwargs.items()
            if name != "past_key_values"
        }
        out = module(*args, **kwargs)
        return out[0] if isinstance(out, tuple | list) else out


class _Reached(Exception):
    """Stops a forward pass at the module that was waited for."""


def caught(module: nn.Module, run: Callable[[], object]) -> Call:
    """The first call that `module` receives during `run()`, which is stopped there."""
    calls: list[Call] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Call(args, kwargs))
        raise _Reached

    handle = module.register_forward_pre_hook(stop, with_kwargs=True, prepend=True)
    try:
        run()
    except _Reached:
        pass
    finally:
        handle.remove()
    if not calls:
        raise ValueError(f"the forward pass never called {type(module).__name__}.")
    return calls[0]
