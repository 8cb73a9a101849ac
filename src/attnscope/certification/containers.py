"""Modules that hand a tensor through their layers and do nothing else: known by their code, not by
watching them run.

A forward that is watched can behave: it may see that it is watched, keep count of its calls, or
read its image where nobody looks. So a class of one's own counts as a container when its forward
*is* one of two functions, whatever its variables are called; everything else is refused.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from attnscope.nets import Transformer

KINDS = 0xFFFF
"""The flags of code that say what kind of function it is; those above are of the file it stands in.
"""


class NotTheChain(ValueError):
    """The network computes something else than its layers one after the other."""

    def __init__(self, how: str) -> None:
        super().__init__(
            "the network computes something else than its layers one after the other, so bounds of"
            f" its layers say nothing of it: {how}. Put what its forward does beside them into a"
            " layer."
        )


def _whole(self: Any, x: Any) -> Any:
    return self.layers(x)


def _in_a_loop(self: Any, x: Any) -> Any:
    for layer in self.layers:
        x = layer(x)
    return x


def _code(function: object) -> tuple[Any, ...] | None:
    """What a function does, without the names of its variables, its place and its docstring."""
    if not isinstance(function, FunctionType):
        return None
    code: CodeType = function.__code__
    constants = tuple(one for one in code.co_consts if one != function.__doc__)
    return (
        code.co_code, code.co_names, constants, code.co_argcount, code.co_kwonlyargcount,
        code.co_flags & KINDS, code.co_freevars, code.co_cellvars, code.co_exceptiontable,
        function.__defaults__,
    )  # fmt: skip


LOOPS = {_code(inspect.unwrap(_in_a_loop))}
WHOLES = {_code(inspect.unwrap(_whole))}


def contained(module: nn.Module) -> nn.Module | None:
    """The container of a module's layers: itself for an `nn.Sequential`, `layers` for our own
    networks and for one whose forward is `return self.layers(x)`, or a loop over them; None for a
    single layer.

    Raises:
        NotTheChain: it has layers, and a forward that does anything else.
    """
    if type(module) is nn.Sequential:
        return module
    if type(module) is Transformer:
        return module.layers
    inner = vars(module).get("_modules", {}).get("layers")
    sequence = isinstance(module, nn.Sequential)
    if not sequence and type(inner) not in (nn.Sequential, nn.ModuleList):
        return None
    if sequence or not _plain(type(module), type(inner)):
        raise NotTheChain(
            f"{type(module).__name__} has a forward of its own. An nn.Sequential will do, or a"
            " class whose forward is `return self.layers(x)` or `for layer in self.layers: x ="
            " layer(x)`, then `return x`"
        )
    return inner


def _plain(kind: type, inner: type) -> bool:
    """Whether a call runs nothing but one of the two functions over the layers that are shown."""
    kept = ("__call__", "__getattr__", "__getattribute__", "__setattr__", "_call_impl")
    own = any(
        inspect.getattr_static(kind, name) is not inspect.getattr_static(nn.Module, name)
        for name in kept
    )
    shadowed = any("layers" in vars(base) for base in kind.__mro__)
    allowed = LOOPS | (WHOLES if inner is nn.Sequential else set())
    forward = inspect.getattr_static(kind, "forward")
    return not own and not shadowed and _code(forward) in allowed


def held(container: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a container with their names, in order; one that stands there twice is there
    twice (`children()` would leave it out).
    """
    return [(name, part) for name, part in container._modules.items() if part is not None]
