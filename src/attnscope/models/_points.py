"""Running a layer and seeing, or changing, what passes between its modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from attnscope.models._catch import Reached, first, hooked, tensors


@dataclass(frozen=True, eq=False)
class Point:
    """A place in a layer where tokens pass: the `turn`-th call of a module, going in or out."""

    module: nn.Module
    turn: int
    end: Literal["in", "out"]


@dataclass(frozen=True, eq=False)
class Inject:
    """Tokens that take the place of what passes a point."""

    at: Point
    tokens: Tensor


def between(
    block: nn.Module,
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    inject: Inject | None,
    ends: Sequence[Point | None],
) -> list[Tensor]:
    """What passes these points (None: the layer's output) when the layer reads x, with other
    tokens injected at one point. The run stops when all are known.

    At the point of injection what came there is reported, not what was put in.
    """
    found: dict[int, Tensor] = {}
    turns: dict[tuple[nn.Module, str], int] = {}
    wanted = {i for i, end in enumerate(ends) if end is not None}

    def passing(module: nn.Module, end: str, value: Tensor) -> Tensor:
        turn = turns.get((module, end), 0)
        turns[module, end] = turn + 1
        for i in wanted:
            at = ends[i]
            if at is not None and (at.module, at.turn, at.end) == (module, turn, end):
                found[i] = value.clone()  # a layer may go on to add to it in place
        if inject is not None:
            at = inject.at
            if (at.module, at.turn, at.end) == (module, turn, end):
                value = inject.tokens.reshape(value.shape)
        if len(found) == len(ends):
            raise Reached
        return value

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        old = next((v for v in tensors(args, kwargs) if v.numel() == x.numel()), None)
        if old is None:
            turns[module, "in"] = turns.get((module, "in"), 0) + 1
            return None
        new = passing(module, "in", old)
        if new is old:
            return None
        return (
            tuple(new if v is old else v for v in args),
            {name: new if v is old else v for name, v in kwargs.items()},
        )

    def after(module: nn.Module, _: Any, out: Any) -> Any:
        old = first(out)
        if not isinstance(old, Tensor) or old.numel() != x.numel():
            turns[module, "out"] = turns.get((module, "out"), 0) + 1
            return None
        new = passing(module, "out", old)
        if new is old:
            return None
        return type(out)((new, *out[1:])) if isinstance(out, tuple | list) else new

    points = [*(end for end in ends if end is not None), *([inject.at] if inject else [])]
    handles: list[Any] = []
    for module in dict.fromkeys(point.module for point in points):
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(after))
    with hooked(handles):
        try:
            y = run(x)
        except Reached:
            y = None
    for i, end in enumerate(ends):
        if end is None and y is not None:
            found[i] = y
    if len(found) != len(ends):
        raise ValueError("the layer did not run as it did when it was first seen.")
    return [found[i].reshape(x.shape) for i in range(len(ends))]
