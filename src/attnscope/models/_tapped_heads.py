"""Single heads seen through a tap as one stack of small maps, where queries, keys and values are
linear but for turns by the position and norms, of each head's own or of what all heads read: rotary
embeddings, QK-norm, latents, soft-caps, sinks, windows and biases, without a family file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.models._chain import fixed
from attnscope.models._moves import FEW
from attnscope.models._rebuilt import ROUNDING, gap
from attnscope.models._state import state_of
from attnscope.models._tapping import (
    check_tapped,
    check_token_wise,
    given,
    heard_at,
    holds,
    output_at,
)
from attnscope.models._taps import Heard
from attnscope.models._token_maps import head_maps
from attnscope.operators import LinearOperator
from attnscope.operators.heads import HeadStack, Matrices, Numbers, each_number, stack_operator
from attnscope.operators.tapped_kernel import Call, TappedKernel
from attnscope.operators.token_maps import TokenMap

if TYPE_CHECKING:
    from attnscope.models._base import Model

SAME = 1e-6
"""How far the heads together may be from the module's own output in float64, relative to its size:
norms of transformers compute in float32.
"""


class TappedHeads(NamedTuple):
    """All heads of a layer at a stack of sequences, in float64; problems are heads times
    sequences.
    """

    matrices: Matrices
    maps: tuple[TokenMap, TokenMap, TokenMap]
    numbers: Numbers
    """what norms over all heads read, for each sequence"""
    call: Call
    sequences: int

    def stack(self, heads: Sequence[int], dtype: torch.dtype, reduced: bool) -> HeadStack:
        """Some of them."""
        chosen = torch.tensor(heads, device=self.call.q.device)
        problems = self._problems(chosen)
        own, numbers = self.matrices.each(lambda part: part[chosen]), self.numbers
        if reduced:
            own, numbers = own.reduced_with(numbers)
        else:
            numbers = each_number(numbers, lambda part: part.repeat(len(heads), 1, 1))
        query, key, value = (part.of(problems).to(dtype) for part in self.maps)
        return HeadStack(
            own.each(lambda part: part.to(dtype)),
            (query, key, value),
            TappedKernel(self.call.of(problems).to(dtype)),
            each_number(numbers, lambda part: part.to(dtype)),
        )

    def _problems(self, chosen: Int[Tensor, " h"]) -> Int[Tensor, " g"]:
        inside = torch.arange(self.sequences, device=chosen.device)
        return (chosen[:, None] * self.sequences + inside).flatten()

    def values(self, heads: Sequence[int], dtype: torch.dtype) -> Float[Tensor, "h b n w"]:
        """What some of them add, in the coordinates into which a reduced stack maps."""
        made = self.stack(heads, dtype, reduced=True)
        return made.written(made.kernel.o).unflatten(0, (len(heads), self.sequences))

    def total(self) -> Float[Tensor, "b n d"]:
        """What all of them add together."""
        o = TappedKernel(self.call).o.unflatten(0, (-1, self.sequences))
        assert self.matrices.output is not None
        return torch.einsum("hbnv,hdv->bnd", o, self.matrices.output)

    def operator(
        self, heads: Sequence[int], stack: tuple[int, ...], dtype: torch.dtype, reduced: bool
    ) -> LinearOperator:
        """The derivatives of some of them."""
        n = self.call.q.shape[1]
        weights = torch.full((*stack, n), 1 / n, dtype=dtype, device=self.call.q.device)
        rough = stack_operator(self.stack(heads, dtype, reduced), stack, weights)
        if dtype == torch.float64:
            return rough
        return replace(rough, exact=lambda: self.operator(heads, stack, torch.float64, reduced))


class _Known(NamedTuple):
    """What no text and no length changes, found once for a layer."""

    state: tuple[object, ...]
    matrices: Matrices
    constant: Float[Tensor, " d"]


KNOWN: WeakKeyDictionary[Model, dict[int, _Known]] = WeakKeyDictionary()
KEPT = 2**30
"""Bytes of matrices that are kept for each model."""


def is_known(model: Model, layer: int) -> bool:
    """Whether the heads of this layer were found before and nobody has touched the module since."""
    kept = KNOWN.get(model, {}).get(layer)
    return kept is not None and kept.state == state_of(model.module)


def tapped_heads(model: Model, layer: int, x: Float[Tensor, "*stack n d"]) -> TappedHeads | None:
    """The heads of this layer at tokens x; None where they have another form than one that a stack
    can run.

    Everything comes from the module's own products in float64, and is confirmed on random ones and
    on the output at every sequence.
    """
    if not holds(partial(check_tapped, model, layer)):
        return None
    if is_known(model, layer):
        kept = KNOWN[model][layer]
        if (made := _found(model, layer, x, kept.matrices, kept.constant)) is not None:
            return made
    wide = model.doubled() or model
    first = x.detach().double().reshape(-1, *x.shape[-2:])[0]
    try:
        check_token_wise(wide, layer, partial(given, wide, layer), first)
        output, constant = output_at(wide, layer, first)
    except ValueError:  # a gate, or tokens that mix
        return None
    made = _found(model, layer, x, output, constant)
    if made is not None:
        _keep(model, layer, _Known(state_of(model.module), made.matrices, constant))
    return made


def _found(
    model: Model,
    layer: int,
    x: Float[Tensor, "*stack n d"],
    known: Matrices | Float[Tensor, "h d v"],
    constant: Float[Tensor, " d"],
) -> TappedHeads | None:
    """The heads with these matrices, or with this output alone, if that is what the module runs."""
    wide = model.doubled() or model
    maps = partial(given, wide, layer)
    sequences = list(x.detach().double().reshape(-1, *x.shape[-2:]))
    output = known if isinstance(known, Tensor) else known.output
    assert output is not None
    few = len(sequences[0]) if model.sees_images else FEW
    try:
        found = head_maps(maps, sequences, few, None if isinstance(known, Tensor) else known[:3])
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # maps that are clipped show no matrix at all far away
        return None
    if found is None:
        return None
    query, key, value = found
    with torch.no_grad():
        call = _call(heard_at(wide, layer, sequences[0]), [maps(one) for one in sequences])
        made = TappedHeads(
            Matrices(query.matrix, key.matrix, value.matrix, output),
            (query.each, key.each, value.each),
            (query.number, key.number, value.number),
            call,
            len(sequences),
        )
        total = (made.total() + constant).reshape(x.shape)
        for own, at, within in ((wide, x.double(), SAME), (model, x, ROUNDING[model.dtype])):
            if gap(total, own.function(layer, "attention")(at).double()) > within:
                return None
    return made


def _keep(model: Model, layer: int, known: _Known) -> None:
    kept = KNOWN.setdefault(model, {})
    kept.pop(layer, None)
    held = (one.matrices for one in (*kept.values(), known))
    size = sum(part.nbytes for matrices in held for part in matrices if part is not None)
    if size <= KEPT:
        kept[layer] = known


def _call(heard: Heard, parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Call:
    """The call of each head at each sequence."""
    h, b = heard.query.shape[1], len(parts)
    mask, bias, sinks, form = fixed(heard)

    def problems(part: Tensor | None) -> Tensor | None:
        if part is None or part.shape[1] == 1:
            return part
        return part.transpose(0, 1).repeat_interleave(b, 0)

    q, k, v = (torch.stack(own, 1).flatten(0, 1).double() for own in zip(*parts, strict=True))
    assert len(q) == h * b
    return Call(
        q,
        k,
        v,
        problems(mask),
        problems(None if bias is None else bias.double()),
        problems(None if sinks is None else sinks.double()),
        form,
    )
