r"""The Jacobian of an attention layer: tiled analytic kernels for every variant that is a
softmax of the heads' scores and of a bias of each key, autograd for the others.

The map is $X \mapsto (\Gamma_{\mu(X)}(x_i))_i$ with the weights and positions of mu fixed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from copy import copy

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.operators.kernels import SoftmaxKernel
from attnscope.operators.operator import Gram, LinearOperator, of_function
from attnscope.operators.precision import MOST_COMMON, common_part, common_rounding, wide, widened

ROWS_AT_ONCE = 4096
"""The adjoint projects this many rows at a time, and writes them over the gradients that it no
longer needs.
"""
SAVING_PAIRS = 8
"""The pairs within which a lighter form of the layer must have saved what it costs."""
SMALLEST, LARGEST = 1e-8, 1e8
"""Sizes of tensors whose products float32 can hold, one after the other."""


def of_attention(attention: Attention, mu: Particles) -> LinearOperator:
    """The derivative of one attention layer at mu, with the metric of mu; a stack of measures gives
    a stack.
    """
    check_masses(attention, mu)
    return _of_checked(attention, mu)


def check_masses(attention: Attention, mu: Particles) -> None:
    """Refuse a measure that does not fit the attention, or a particle without mass."""
    attention.check(mu.x, mu)
    if not (mu.weights > 0).all():
        raise ValueError(
            "the Jacobian in L2(mu) needs every weight above 0: drop the particles that carry no"
            " mass."
        )


def _of_checked(attention: Attention, mu: Particles, layer: _Layer | None = None) -> LinearOperator:
    """The operator; `layer` is its analytic part when that is there already."""
    layer = _analytic(attention, mu) if layer is None else layer
    if layer is not None:
        shape = tuple(mu.x.shape[-2:])
        plain = LinearOperator(
            layer.mv, layer.rmv, shape, shape, mu.x.dtype, mu.x.device, tuple(mu.x.shape[:-2]),
            rounding=max(layer.kernel.rounding(), common_rounding(mu.x)),
        )  # fmt: skip
    else:
        plain = of_function(lambda x: attention.dense(x, mu.at(x)), mu.x, stack=mu.x.ndim - 2)

    def restrict(index: Int[Tensor, " c"]) -> LinearOperator:
        return _of_checked(
            attention, mu.rows(index), None if layer is None else layer.restricted(index)
        )

    return dataclasses.replace(
        in_metric(plain, mu.weights),
        lighter=None if layer is None else _lighter(layer, mu, plain.rounding),
        exact=(
            None
            if mu.x.dtype == torch.float64
            else lambda: _of_checked(widened(attention, mu.x.device), widened(mu, mu.x.device))
        ),
        coarse=(
            None
            if layer is None or not _fits_float32(attention, mu, layer.kernel.v)
            else lambda: _of_checked(attention.to(torch.float32), mu.to(torch.float32))
        ),
        restrict=restrict if mu.x.ndim > 2 else None,
    )


def _lighter(layer: _Layer, mu: Particles, rounding: float) -> Callable[[], LinearOperator] | None:
    r"""The heads side by side, o, before the output projection W, measured by $W^TW$: one product
    with a matrix where the projection and its adjoint are two. None where a few pairs would not pay
    for that matrix, or where its entries are of extreme size.
    """
    if layer.out is None:
        return None
    d, c = layer.out.shape
    if SAVING_PAIRS * mu.x[..., 0].numel() * (2 * d - c) < d * c or not _are_moderate(layer.out):
        return None

    def operator(layer: _Layer, mu: Particles, gram: Gram) -> LinearOperator:
        shape, stack = tuple(mu.x.shape[-2:]), tuple(mu.x.shape[:-2])
        plain = LinearOperator(
            layer.moved, layer.pulled, shape, (shape[0], c), mu.x.dtype, mu.x.device, stack,
            rounding=rounding, gram=gram,
        )  # fmt: skip

        def restrict(index: Int[Tensor, " c"]) -> LinearOperator:
            return operator(layer.restricted(index), mu.rows(index), gram)

        return dataclasses.replace(
            in_metric(plain, mu.weights), restrict=restrict if stack else None
        )

    @torch.no_grad()
    def made() -> LinearOperator:
        assert layer.out is not None
        matrix = layer.out.mT @ layer.out
        return operator(layer, mu, Gram(matrix, float(wide(matrix).norm())))

    return made


def _are_moderate(*parts: Tensor) -> bool:
    """Whether products of their entries stay far from the ends of float32."""
    ends = torch.stack([end for part in parts for end in torch.aminmax(part.detach())])
    sizes = ends.abs().view(-1, 2).amax(1)
    return bool((((sizes > SMALLEST) & (sizes < LARGEST)) | (sizes == 0)).all())


def _fits_float32(attention: Attention, mu: Particles, values: Float[Tensor, "g n v"]) -> bool:
    """Whether float32 keeps the digits of these numbers, and of what tokens and values differ by.
    Angles of rotary embeddings do not: they grow with the token's number.
    """
    if mu.x.dtype != torch.float64 or attention.heads.rotary is not None:
        return False
    if max(common_part(mu.x), common_part(values)) > MOST_COMMON:
        return False
    heads = attention.heads
    parts = (mu.x, mu.weights, heads.query, heads.key, heads.value, heads.output)
    return _are_moderate(*(part for part in parts if part is not None))


def in_metric(plain: LinearOperator, weights: Float[Tensor, "*stack n"]) -> LinearOperator:
    """A map whose adjoint is the Euclidean one, with the adjoint of these weights."""
    if bool((weights == weights[..., :1]).all()):
        return plain
    mass = weights.unsqueeze(-1)
    return dataclasses.replace(plain, rmv=lambda v: plain.rmv(mass * v) / mass, weights=weights)


def _analytic(attention: Attention, mu: Particles) -> _Layer | None:
    """The layer in closed form where the variant declares what that needs, None elsewhere."""
    kernel = softmax_kernel(attention, mu)
    return None if kernel is None else _Layer(attention, mu, kernel)


@torch.no_grad()
def softmax_kernel(
    attention: Attention, mu: Particles, heads_first: bool = False
) -> SoftmaxKernel | None:
    """The derivatives of the coupling, one problem for each sequence and head (the heads of a
    sequence together, or the sequences of a head); None where the variant has no closed form.
    """
    if not attention.normalised or attention.bias_of == "measure":
        return None
    kernel = attention.kernel(mu.x, mu)
    if kernel is None:
        return None
    heads, stack = attention.heads, mu.x.ndim - 2

    def problems(part: Shaped[Tensor, "*stack h ..."]) -> Shaped[Tensor, "g ..."]:
        return (part.movedim(stack, 0) if heads_first else part).flatten(0, stack)

    places = None
    if attention.causal:
        places = problems(mu.places().unsqueeze(-2).expand(kernel.bias.shape))
    slope = attention.bias_slope(kernel.k) if attention.bias_of == "key" else None
    number = torch.arange(heads.count, device=mu.x.device).expand(*mu.x.shape[:-2], -1)
    return SoftmaxKernel(
        problems(kernel.q),
        problems(kernel.k),
        problems(heads.read(mu.x)),
        problems(kernel.bias),
        kernel.scale,
        position_bias=attention.position_bias(*attention.token_numbers(mu.x, mu, None)),
        places=places,
        triangular=attention.causal and mu.positions is None,
        slope=None if slope is None else problems(slope),
        head=problems(number),
    )


class _Layer:
    """Projections around the softmax kernel: tokens to (q, k, v) and heads back to tokens, and
    their adjoints.

    Projected vectors lie token by token, (n, stack, heads, k): the problems (stack times heads) of
    the kernel are views of them. Short sequences need no queries and keys, see `_met`, but for the
    first product, which may be the only one.
    """

    def __init__(self, attention: Attention, mu: Particles, kernel: SoftmaxKernel) -> None:
        self.heads = heads = attention.heads
        self.at = torch.arange(mu.n, device=mu.x.device) if heads.rotary is not None else None
        self.into = [part.flatten(0, 1) for part in (heads.query, heads.key, heads.value)]
        self.out = None if heads.output is None else heads.output.transpose(0, 1).flatten(1)
        self.kernel = kernel
        self.short, self.used = _is_short(attention, mu, kernel), False
        self._met: Float[Tensor, "b r d"] | None = None

    def restricted(self, index: Int[Tensor, " c"]) -> _Layer:
        """The layer at these sequences of the stack alone."""
        smaller, h = copy(self), self.heads.count
        smaller.kernel = self.kernel.restricted(
            (index[:, None] * h + torch.arange(h, device=index.device)).flatten()
        )
        smaller._met = None if self._met is None else self._met[index]
        return smaller

    def met(self) -> Float[Tensor, "b r d"] | None:
        """What `_met` makes, once, for short sequences that have been used before."""
        if self.short and self.used and self._met is None:
            self._met = _met(self)
        self.used = True
        return self._met

    @torch.no_grad()
    def mv(self, u: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n d"]:
        o = self._moved(u)
        if self.out is None:
            return o.unflatten(0, (-1, self.heads.count)).sum(1).reshape(u.shape)
        return _stacked(_side_by_side(o, u[..., 0].numel()) @ self.out.mT, u.shape)

    @torch.no_grad()
    def rmv(self, y: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n d"]:
        return self._pulled(self._read(_token_by_token(y), y.shape[-2]), y.shape)

    @torch.no_grad()
    def moved(self, u: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack n c"]:
        """The change of what the output projection takes, the heads of each token side by side."""
        rows = _side_by_side(self._moved(u), u[..., 0].numel())
        return _stacked(rows, (*u.shape[:-1], rows.shape[1]))

    @torch.no_grad()
    def pulled(self, y: Float[Tensor, "*stack n c"]) -> Float[Tensor, "*stack n d"]:
        """The adjoint of `moved`."""
        rows = _token_by_token(y)
        rows = rows.clone() if rows.data_ptr() == y.data_ptr() else rows  # it is written over
        o = self._problems(rows, y.shape[-2])
        return self._pulled(o, (*y.shape[:-1], self.into[0].shape[1]))

    def _moved(self, u: Float[Tensor, "*stack n d"]) -> Float[Tensor, "g n v"]:
        tokens = _token_by_token(u)
        met = self.met()
        if met is None:
            return self.kernel.jvp(*self._changes(tokens, u.shape[-2]))
        v = self._problems(tokens @ self.into[2].mT, u.shape[-2])
        return self.kernel.jvp_of_scores(self._score_changes(u, met), v)

    def _pulled(
        self, o: Float[Tensor, "g n v"], shape: tuple[int, ...]
    ) -> Float[Tensor, "*stack n d"]:
        """Gradients in the tokens from those in what the heads return, which are written over."""
        rows, met = math.prod(shape[:-1]), self.met()
        if met is not None:
            scores, v = self.kernel.vjp_of_scores(o)
            found = _stacked(_side_by_side(v, rows) @ self.into[2], shape)
            return found + self._score_gradients(scores, met).view(shape)
        q, k, v, bias = self.kernel.vjp(o)
        if bias is not None and self.kernel.slope is not None:
            k.addcmul_(bias.unsqueeze(-1), self.kernel.slope)
        if self.at is not None:
            q, k = self.heads.turn(q, -self.at), self.heads.turn(k, -self.at)
        parts = [_side_by_side(part, rows) for part in (q, k, v)]
        total = parts[0] if parts[0].shape[1] == shape[-1] else parts[0].new_empty(rows, shape[-1])
        for start in range(0, rows, ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            made = parts[0][some] @ self.into[0]
            for part, matrix in zip(parts[1:], self.into[1:], strict=True):
                made.addmm_(part[some], matrix)
            total[some] = made
        return _stacked(total, shape)

    def _changes(
        self, tokens: Float[Tensor, "rows d"], n: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """How queries, keys, values and a key bias that moves change with the tokens."""
        q, k, v = (self._problems(tokens @ matrix.mT, n) for matrix in self.into)
        if self.at is not None:
            q, k = self.heads.turn(q, self.at), self.heads.turn(k, self.at)
        slope = self.kernel.slope
        return q, k, v, None if slope is None else (slope * k).sum(-1)

    def _score_changes(
        self, u: Float[Tensor, "*stack n d"], met: Float[Tensor, "b r d"]
    ) -> Float[Tensor, "g n n"]:
        n = u.shape[-2]
        both = torch.bmm(u.reshape(len(met), n, -1), met.mT).unflatten(-1, (2, -1, n))
        change = both[:, :, 0].transpose(1, 2).contiguous()
        return change.add_(both[:, :, 1].permute(0, 2, 3, 1)).flatten(0, 1)

    def _score_gradients(
        self, scores: Float[Tensor, "g n n"], met: Float[Tensor, "b r d"]
    ) -> Float[Tensor, "b n d"]:
        """The adjoint of `_score_changes`."""
        each = scores.unflatten(0, (len(met), -1))
        both = torch.stack([each.transpose(1, 2), each.permute(0, 3, 1, 2)], 2)
        return torch.bmm(both.flatten(2), met)

    def _read(self, tokens: Float[Tensor, "rows d"], n: int) -> Float[Tensor, "g n v"]:
        """The adjoint of the output projection, in memory of its own."""
        if self.out is not None:
            return self._problems(tokens @ self.out, n)
        return (
            tokens.reshape(n, -1, 1, tokens.shape[-1])
            .repeat(1, 1, self.heads.count, 1)
            .flatten(1, 2)
            .transpose(0, 1)
        )

    def _problems(self, projected: Float[Tensor, "rows hk"], n: int) -> Float[Tensor, "g n k"]:
        return projected.reshape(n, -1, projected.shape[1] // self.heads.count).transpose(0, 1)


def _is_short(attention: Attention, mu: Particles, kernel: SoftmaxKernel) -> bool:
    """Whether scores move at less cost than queries and keys: 4 h n^2 d operations for each
    sequence in place of 4 n d^2. Half of where they would be equal, since the products of one
    sequence are smaller than those of a whole stack. What turns with the token's number, or a bias
    that moves with its key, has no such form.
    """
    heads = attention.heads
    return (
        heads.rotary is None and kernel.slope is None and 2 * heads.count * mu.n <= mu.x.shape[-1]
    )


@torch.no_grad()
def _met(layer: _Layer) -> Float[Tensor, "b r d"]:
    r"""The vectors that tokens meet in scores. With $A_j = sW_Q^Tk_j$ and $B_i = sW_K^Tq_i$

    $$ \dot s_{ij} = \langle\dot x_i, A_j\rangle + \langle\dot x_j, B_i\rangle; $$

    A of all heads and tokens first, then B. Twice as many numbers as all heads have tokens, for
    each coordinate; they are made once, at the cost of the projections that one product saves.
    """
    kernel, heads, h = layer.kernel, layer.heads, layer.heads.count

    def through(part: Float[Tensor, "g n k"], matrix: Float[Tensor, "h k d"]) -> Tensor:
        by_head = part.unflatten(0, (-1, h)).transpose(0, 1)
        made = torch.bmm(by_head.reshape(h, -1, part.shape[-1]), matrix)
        return made.view(h, -1, *part.shape[1:-1], made.shape[-1]).transpose(0, 1).flatten(1, 2)

    return torch.cat([through(kernel.k, heads.query), through(kernel.q, heads.key)], 1)


def _token_by_token(u: Float[Tensor, "*stack n d"]) -> Float[Tensor, "rows d"]:
    """Rows (token, sequence): a copy for a stack, a view for one sequence."""
    return u.reshape(-1, *u.shape[-2:]).transpose(0, 1).reshape(-1, u.shape[-1])


def _stacked(rows: Float[Tensor, "rows d"], shape: tuple[int, ...]) -> Float[Tensor, "*stack n d"]:
    return rows.reshape(shape[-2], -1, shape[-1]).transpose(0, 1).reshape(shape)


def _side_by_side(parts: Float[Tensor, "g n k"], rows: int) -> Float[Tensor, "rows hk"]:
    """The heads of each token in one row."""
    return parts.transpose(0, 1).reshape(rows, -1)
