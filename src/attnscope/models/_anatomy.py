r"""Where the parts of a layer begin and end, found by watching the layer run.

Every module inside a layer is watched while the layer reads random tokens $x$; the tensors that
pass between modules then tell how it is built, whatever its modules are called:

- the attention reads $s$, which is $x$ itself or what a norm made of it;
- $r = x + c f$ is what some later module reads, $f$ the output of a module after the attention ($c$
  a number per coordinate, 1 unless the layer scales its residuals); without such an $r$ attention
  and MLP stand side by side, $y = x + f + m$;
- what turns $r$ into the layer's output $y$ is the MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnscope.models._catch import first, hooked, tensors
from attnscope.models._points import Inject, Point, between

MATCH = 1e-5
"""How closely two tensors agree, relative to the largest entry, when one is the other or a sum."""
PASSING = ("norm", "dropout", "identity", "droppath", "layerscale", "drop_path")
"""Modules, by their class, that may stand between the attention and the residual."""


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The points of a layer. `core` is the attention module, None where a layer has none."""

    core: Point | None
    reads: Point | None = None
    """Where the attention's tokens leave the norm; None when the attention reads the stream."""
    attended: Point | None = None
    """The output of the attention, projected."""
    added: Point | None = None
    """What is added to the stream; after a further norm in sandwich blocks."""
    middle: Point | None = None
    """Where the stream after the attention is read; None in parallel blocks."""
    post_norm: bool = False
    """Whether the norm at `middle` makes the next stream, as in BERT."""
    normed: bool = False
    """Whether a norm stands between the attention and the residual."""
    scaled: bool = False
    """Whether what is added is scaled by the layer first."""
    last: Point | None = None
    """In post-norm layers, the input of the norm whose output is the layer's."""
    parallel: bool = False
    mixed: str = ""
    """Why the parts beyond the attention cannot be told apart, if they cannot."""


@dataclass(eq=False)
class _Event:
    module: nn.Module
    turn: int
    inputs: list[Tensor]
    output: Tensor | None = None
    began: int = 0
    ended: int = 0

    def point(self, end: Literal["in", "out"]) -> Point:
        return Point(self.module, self.turn, end)

    @property
    def passing(self) -> bool:
        return any(word in type(self.module).__name__.lower() for word in PASSING)


def anatomy(
    block: nn.Module,
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    cores: Sequence[nn.Module],
) -> Anatomy:
    """How this layer is built, seen when `run(x)` runs it; `cores` may be its attention."""
    events, y = _record(block, run, x)
    core = _core(events, cores, x)
    if core is None and block in cores:
        return Anatomy(
            Point(block, 0, "in"), attended=Point(block, 0, "out"), mixed="it is attention alone"
        )
    if core is None:
        return Anatomy(None, mixed="it has no attention")
    reads = _source(events, core.inputs[0], x, core)
    found = _residual(events, core, x, y)
    if found is None:
        return _parallel(block, run, x, y, core, events, reads)
    middle, added = found
    attended = _before_norms(events, added, core)
    known: dict[str, Any] = {
        "core": core.point("in"),
        "reads": reads,
        "attended": attended.point("out"),
        "added": added.point("out"),
        "normed": _normed(added, attended),
        "scaled": middle is not None
        and not _same(added.output, middle.inputs[0].reshape(x.shape) - x),
    }
    if middle is None:
        return Anatomy(**known, mixed="it has no MLP")
    known["middle"] = middle.point("in")
    away = _noise(x)
    if _feeds_branch(block, run, away, middle, y):
        return Anatomy(**known)
    ends = [e for e in events if e.passing and e.inputs and _same(e.output, y)]
    last = ends[-1] if ends and ends[-1] is not middle else None
    if _feeds_stream(block, run, away, middle, last, y):
        last_point = None if last is None else last.point("in")
        return Anatomy(**known, post_norm=True, last=last_point)
    return Anatomy(**known, mixed="its MLP could not be followed")


def _feeds_branch(
    block: nn.Module, run: Callable[[Tensor], Tensor], away: Tensor, middle: _Event, y: Tensor
) -> bool:
    """Whether what the reader makes of the stream is only added to it: the same step from another
    stream.
    """
    r, start = middle.inputs[0].reshape(y.shape), middle.point("in")
    came, end = between(block, run, away, Inject(start, r), (start, None))
    return _same(end - came, y - r)


def _feeds_stream(
    block: nn.Module,
    run: Callable[[Tensor], Tensor],
    away: Tensor,
    middle: _Event,
    last: _Event | None,
    y: Tensor,
) -> bool:
    """Whether what the norm makes of the stream is the next stream: then nothing else matters."""
    if middle.output is None or "norm" not in type(middle.module).__name__.lower():
        return False
    injected = Inject(middle.point("out"), middle.output)
    return _same(between(block, run, away, injected, (None,))[0], y)


def _record(
    block: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[list[_Event], Tensor]:
    events: list[_Event] = []
    open_: list[_Event] = []
    turns: dict[nn.Module, int] = {}
    clock = 0

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal clock
        clock += 1
        given = [value.clone() for value in tensors(args, kwargs) if value.numel() == x.numel()]
        event = _Event(module, turns.get(module, 0), given, began=clock)
        turns[module] = event.turn + 1
        events.append(event)
        open_.append(event)

    def after(_: nn.Module, __: Any, out: Any) -> None:
        nonlocal clock
        clock += 1
        event, value = open_.pop(), first(out)
        event.ended = clock
        if isinstance(value, Tensor) and value.numel() == x.numel():
            event.output = value.clone()  # a layer may go on to add to it in place

    inner = [module for module in block.modules() if module is not block]
    handles: list[Any] = []
    for module in inner:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(after))
    with hooked(handles), torch.no_grad():
        y = run(x)
    return events, y


def _core(events: list[_Event], cores: Sequence[nn.Module], x: Tensor) -> _Event | None:
    """The innermost attention module that is called with tokens; the first of several."""
    called = [e for e in events if e.module in cores and e.inputs]
    for event in called:
        inside = set(event.module.modules()) - {event.module}
        if not any(other.module in inside for other in called):
            return event
    return None


def _source(events: list[_Event], value: Tensor, x: Tensor, core: _Event) -> Point | None:
    """Where the attention's input comes from: the module that made it, or the stream."""
    if _same(value, x):
        return None
    makers = [e for e in events if e.ended < core.began and e.ended > 0 and _same(e.output, value)]
    return makers[-1].point("out") if makers else core.point("in")


def _residual(
    events: list[_Event], core: _Event, x: Tensor, y: Tensor
) -> tuple[_Event | None, _Event] | None:
    """The module that reads the stream after the attention (None: it is the layer's output), and
    the module whose output was added to it. Both may be inside the attention module.
    """
    readers: list[tuple[Tensor, _Event | None]] = [
        (event.inputs[0], event) for event in events if event.began > core.began and event.inputs
    ]
    made = sorted((e for e in events if e.ended > core.began), key=lambda e: e.ended)
    for value, reader in [*readers, (y, None)]:
        for event in made:
            if reader is not None and event.ended > reader.began:
                break
            if not _same(event.output, value) and _adds(value, x, event.output):
                step = value.reshape(x.shape) - x
                return _innermost(events, reader, value), _holder(made, event, step)
    return None


def _holder(made: list[_Event], event: _Event, step: Tensor) -> _Event:
    """The module that was added: one around the event where the event's own output was stretched on
    its way out, by a hook on that module for example.
    """
    if _same(event.output, step):
        return event
    around = (e for e in made if e.began < event.began and event.ended < e.ended)
    return next((e for e in around if _same(e.output, step)), event)


def _innermost(events: list[_Event], reader: _Event | None, value: Tensor) -> _Event | None:
    """The module deepest inside the reader that reads the same tokens: a container may hold the
    residual too.
    """
    if reader is None:
        return None
    inside = [
        e
        for e in events
        if reader.began <= e.began and e.ended <= reader.ended and e.inputs[:1]
        if _same(e.inputs[0], value)
    ]
    norms = [e for e in inside if "norm" in type(e.module).__name__.lower()]
    holders = [e for e in inside if any(e.began < n.began and n.ended < e.ended for n in norms)]
    return norms[0] if holders or reader in norms else inside[0]


def _before_norms(events: list[_Event], added: _Event, core: _Event) -> _Event:
    """The attention's own output: what was added, before norms and the like."""
    current = added
    while current.passing and current.inputs:
        value = current.inputs[0]
        makers = [
            e for e in events if core.ended <= e.ended < current.began and _same(e.output, value)
        ]
        if not makers:
            break
        current = makers[0]
    return current


def _normed(added: _Event, attended: _Event) -> bool:
    return (
        added is not attended
        and attended.output is not None
        and not _same(added.output, attended.output)
    )


def _parallel(
    block: nn.Module,
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    core: _Event,
    events: list[_Event],
    reads: Point | None,
) -> Anatomy:
    """Attention and MLP side by side, if the rest of the output does not feel the attention."""
    made = [e for e in events if e.output is not None and e.ended >= core.ended]
    noise = _noise(x)
    for event in made:
        point = event.point("out")
        (other,) = between(block, run, x, Inject(point, noise), (None,))
        if event.output is not None:
            rest = y - event.output.reshape(y.shape)
            if _same(other - noise, rest) and not _same(y, event.output):
                return Anatomy(core.point("in"), reads, point, point, parallel=True)
    end = next((e for e in made if e.module is core.module and e.turn == core.turn), None)
    return Anatomy(
        core.point("in"),
        reads,
        None if end is None else end.point("out"),
        mixed="its residual stream could not be followed",
    )


def _noise(x: Tensor) -> Tensor:
    """Tokens that have nothing to do with x: the seed is far from those of layers."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(987_654_321)).to(x)


def _same(a: Tensor | None, b: Tensor) -> bool:
    if a is None or a.numel() != b.numel():
        return False
    if a is b:
        return True
    a = a.reshape(b.shape)
    return bool((a - b).abs().max() <= MATCH * b.abs().max())


def _adds(value: Tensor, x: Tensor, f: Tensor | None) -> bool:
    """Whether value = x + c f with one number c per coordinate."""
    if f is None:
        return False
    f, step = f.reshape(-1, x.shape[-1]), (value.reshape(x.shape) - x).reshape(-1, x.shape[-1])
    size = step.abs().max()
    if size == 0 or f.abs().max() == 0:
        return bool(size == f.abs().max())  # attention that is zero adds nothing
    slack = MATCH * max(float(value.abs().max()), float(x.abs().max()))
    if (step - f).abs().max() <= slack:
        return True
    scale = (step * f).sum(0) / f.square().sum(0).clamp_min(torch.finfo(f.dtype).tiny)
    # A stretched copy must explain the step itself, not only be small beside the stream.
    return bool((step - scale * f).abs().max() <= max(slack, 1e-3 * float(size)) < 0.1 * size)
