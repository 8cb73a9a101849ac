r"""Spans: the map from the stream at one place of a network to that at a later one.

| place | the stream there |
|---|---|
| k | what enters block k, counted from 0: at 0 embeddings and their norm are done |
| "last" | what leaves the last block, before the final norm; the number of blocks says the same |
| "final" | after the final norm (the same where there is none) |
| "logits" | every token's logits, by the network's own head |
| "next" | the logits of the last token alone |

The whole network runs, with other tokens put in where the span begins, until it ends: what happens
between blocks and beside them is part of the map.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor, nn

from attnscope.models._catch import Reached, first, hooked, tensors
from attnscope.models._head import Maker
from attnscope.models._reading import Encoder, Reader
from attnscope.operators import LinearOperator, jacobian
from attnscope.validation import described

if TYPE_CHECKING:
    from attnscope.models._base import Model

Place = int | Literal["last", "final", "logits", "next"]
NAMED_PLACES = ("last", "final", "logits", "next")


def place_number(model: Spanned, place: object) -> int:
    """The order of a place: blocks by their number, then last, final, and the logits."""
    if isinstance(place, str) and place in NAMED_PLACES:
        return model.layers + min(NAMED_PLACES.index(place), 2)
    if isinstance(place, int) and not isinstance(place, bool) and 0 <= place <= model.layers:
        return place
    raise ValueError(
        f"a place in {model.name} is a number from 0 to {model.layers}, its number of layers, or"
        f" {', '.join(NAMED_PLACES)}, got {place!r}."
    )


def check_span(model: Spanned, start: object, stop: object) -> None:
    """Refuse a span that is none."""
    before, after = place_number(model, start), place_number(model, stop)
    if before >= after:
        raise ValueError(f"a span must end after it begins, got one from {start!r} to {stop!r}.")
    if after == model.layers + 2:
        model.whole()  # says why where there is no head


def pieces_of(model: Spanned, start: Place, stop: Place) -> list[tuple[Place, Place]]:
    """The blocks of a span, and what follows them: their composition is the span."""
    named: dict[int, Place] = {model.layers: "last", model.layers + 1: "final"}
    ends = [named.get(k, k) for k in range(place_number(model, start), place_number(model, stop))]
    return list(zip(ends, [*ends[1:], stop], strict=True))


@final
@dataclass(frozen=True, eq=False)
class Span:
    """A differentiable map on tokens, (..., n, d) -> (..., n, d), or onto logits.

    `inputs` is what the network reads while other tokens are put in: it gives the mask, and what
    some networks make of the ids beside the stream.
    """

    model: Spanned
    start: Place
    stop: Place
    inputs: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[-1] != self.model.dim:
            raise ValueError(
                f"a span of {self.model.name} needs tokens of shape (..., n, {self.model.dim}), got"
                f" {described(x)}."
            )
        stack = x.reshape(-1, *x.shape[-2:])
        inputs = self._read(stack)
        (out,) = follow(self.model, inputs, [self.stop], self.start, stack)
        return out.reshape(*x.shape[:-2], *out.shape[1:])

    def _read(self, stack: Tensor) -> Tensor:
        inputs = self.model.sample(stack.shape[-2]) if self.inputs is None else self.inputs
        if inputs is None:
            raise ValueError(
                f"nobody knows what {self.model.name} reads: give the span a source, as in"
                " model.span(start, stop, source)."
            )
        if len(inputs) not in (1, len(stack)):
            raise ValueError(f"the source has {len(inputs)} sequences, the tokens {len(stack)}.")
        return inputs.expand(len(stack), *inputs.shape[1:])


def follow(
    model: Spanned,
    inputs: Tensor,
    stops: Sequence[Place],
    start: Place | None = None,
    x: Tensor | None = None,
) -> list[Tensor]:
    """The stream (B, n, d), or the logits, at these places when the network reads a stack of
    inputs; with other tokens put in at `start`.

    The run ends when the last of them is known.
    """
    names = {place: place_number(model, place) for place in stops}
    passing = _Passing(model, set(names.values()), start, x)
    logits = [place for place in stops if place in ("logits", "next")]
    model.tapped  # noqa: B018  decides which attention the context below uses
    run: Callable[[], object] = lambda: model.run(inputs)  # noqa: E731
    if logits:
        whole, only_last = model.whole(), "logits" not in logits
        run = lambda: _with_head(model, whole, inputs, only_last)  # noqa: E731
    out: object = None
    with model.plainly(), hooked(passing.handles()), suppress(Reached):
        out = run()
    missing = set(names.values()) - set(passing.found) - ({model.layers + 2} if logits else set())
    if missing:
        raise ValueError(
            f"the forward pass of {model.name} never reached place {min(missing)}: its layers"
            " cannot be followed."
        )
    if logits:
        every = _logits(model, out)
        return [_chosen(place, every, passing.found, names) for place in stops]
    return [passing.found[names[place]] for place in stops]


def span_jacobian(model: Model, start: Place, stop: Place, source: str | Tensor) -> LinearOperator:
    """The derivative of a span at the tokens of a source, with its float64 finish."""
    check_span(model, start, stop)
    model.check_still()
    inputs, _ = model._inputs(source)
    (x,) = streams(model, source, [start])
    return at_stream(model, start, stop, inputs, x)


def streams(model: Model, source: str | Tensor, places: Sequence[Place]) -> list[Tensor]:
    """The stream at these places when the network reads a source: (n, d), or a stack for several
    sequences.
    """
    inputs, stacked = model._inputs(source)
    with torch.no_grad():
        found = follow(model, inputs, places)
    return found if stacked else [x[0] for x in found]


def at_stream(
    model: Model, start: Place, stop: Place, inputs: Tensor, x: Tensor, double: Model | None = None
) -> LinearOperator:
    """The derivative of a span at the stream x, (n, d) or a stack, when the network reads these
    inputs.
    """
    double = model.doubled() if double is None else double
    exact = None
    if double is not None and double.dtype != x.dtype:
        wide = inputs.to(double.dtype) if inputs.is_floating_point() else inputs
        exact = Span(double, start, stop, wide)
    stack = x.ndim - 2
    made = jacobian(Span(model, start, stop, inputs), x, stack, double=exact)
    if not stack:
        return made

    def restrict(index: Tensor) -> LinearOperator:
        # some networks make something of the ids beside the stream: they stay with their tokens
        return at_stream(model, start, stop, inputs[index], x[index], double)

    return replace(made, restrict=restrict)


class Spanned(Reader):
    """A network between any two places of its stream, with its head where it has one."""

    def __init__(self, module: nn.Module, name: str, encoder: Encoder | None = None) -> None:
        super().__init__(module, name, encoder)
        self.head: Maker | None = None
        """What puts a head around the module, where one is known."""
        self._whole: nn.Module | None = None

    def span(self, start: Place, stop: Place, source: str | Tensor | None = None) -> Span:
        """The map from the stream before block `start` to that before block `stop`, or to "last",
        "final", "logits" or "next" (`models/_spans.py` says what they are), run by the network.

        A source is only needed by networks that look at their ids again beside the stream.
        """
        check_span(self, start, stop)
        self.check_still()
        return Span(self, start, stop, None if source is None else self._inputs(source)[0])

    def whole(self) -> nn.Module:
        """The network with the head that gives logits; fetched when first asked for."""
        if self._whole is None:
            if self.head is None:
                raise ValueError(
                    f"{self.name} came without a head that gives logits: pass the module that has"
                    ' one to load, or use a span to "last" or "final".'
                )
            self._whole = self.head(self.module)
        return self._whole


class _Passing:
    """Hooks that see, and where asked change, the stream as it passes from block to block."""

    def __init__(
        self, model: Spanned, wanted: set[int], start: Place | None, x: Tensor | None
    ) -> None:
        self.model, self.x = model, x
        self.start = None if start is None else place_number(model, start)
        self.wanted = {place for place in wanted if place <= model.layers + 1}
        self.enough = max(wanted) <= model.layers + 1
        self.found: dict[int, Tensor] = {}
        self.begun = self.ended = 0

    def handles(self) -> list[Any]:
        made: list[Any] = []
        for block in dict.fromkeys(self.model.blocks):
            made.append(
                block.register_forward_pre_hook(self.before, with_kwargs=True, prepend=True)
            )
            made.append(block.register_forward_hook(self.after))
        made.append(self.model.module.register_forward_hook(self.at_end))
        return made

    def at(self, place: int, value: Tensor) -> Tensor:
        """What goes on from this place, in the network's own order of axes."""
        if place in self.wanted:
            # a layer may go on to write into its tokens
            self.found[place] = self.model._ordered(value).clone()
        if self.enough and len(self.found) == len(self.wanted):
            raise Reached
        if place != self.start or self.x is None:
            return value
        return self.model._ordered(self.x).reshape(value.shape)

    def before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.begun += 1
        old = next(tensors(args, kwargs), None)
        if old is None:
            return None
        new = self.at(self.begun - 1, old)
        if new is old:
            return None
        return (
            tuple(new if value is old else value for value in args),
            {name: new if value is old else value for name, value in kwargs.items()},
        )

    def after(self, _: nn.Module, __: Any, out: Any) -> Any:
        self.ended += 1
        old = first(out)
        if self.ended != self.model.layers or not isinstance(old, Tensor):
            return None
        new = self.at(self.model.layers, old)
        if new is old:
            return None
        return type(out)((new, *out[1:])) if isinstance(out, tuple | list) else new

    def at_end(self, _: nn.Module, __: Any, out: Any) -> Any:
        place = self.model.layers + 1
        if place not in self.wanted and place != self.start:
            return None
        old = getattr(out, "last_hidden_state", first(out))
        if not isinstance(old, Tensor) or old.ndim != 3 or old.shape[-1] != self.model.dim:
            raise ValueError(
                f"{self.model.name} does not give its final tokens back (it gives"
                f' {described(old)}), so a span cannot begin or end there: use "last".'
            )
        new = self.at(place, old)
        if new is old:
            return None
        if isinstance(out, Tensor):
            return new
        if isinstance(out, tuple | list):
            return type(out)((new, *out[1:]))
        changed = copy.copy(out)
        changed["last_hidden_state"] = new
        return changed


def _with_head(model: Spanned, whole: nn.Module, inputs: Tensor, only_last: bool) -> object:
    if whole is model.module:
        return model.run(inputs)
    name = getattr(whole, "main_input_name", "input_ids")
    accepted = inspect.signature(whole.forward).parameters
    extra: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}
    if only_last and "logits_to_keep" in accepted:
        extra["logits_to_keep"] = 1  # the others would cost memory for nothing
    return whole(**{name: inputs}, **extra)


def _logits(model: Spanned, out: object) -> Tensor:
    found = getattr(out, "logits", first(out))
    tokens = isinstance(found, Tensor) and found.ndim == 3
    bare = tokens and model.whole() is model.module and found.shape[-1] == model.dim
    if not isinstance(found, Tensor) or not tokens or bare:
        raise ValueError(
            f"the head of {model.name} gives {described(found)}, not logits for every token."
        )
    return found if model.whole() is not model.module else model._ordered(found)


def _chosen(place: Place, every: Tensor, found: dict[int, Tensor], names: dict[Any, int]) -> Tensor:
    if place == "next":
        return every[:, -1]
    return every if place == "logits" else found[names[place]]
