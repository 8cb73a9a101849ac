r"""Every single head of a layer as one stack of small maps with the same singular values.

The derivative of head h reads a token only through its query, key and value, and writes only into
the range of its output: with $[Q_h; K_h; V_h]^T = E_hR_h$ and $W_h = F_hS_h$ (QR, orthonormal
columns), $J_h = F_h\,\hat J_h\,E_h^T$ token by token, where $\hat J_h$ from $n \cdot 3k$ to
$n \cdot v$ coordinates has $R_h$ and $S_h$ for projections. Biases, rotary embeddings and shared
keys stand inside. A residual or a norm layer around a head would not fit: those act on all of d.

A norm over all heads lets token i reach head h through numbers $\langle\rho_{if}, x\rangle$, f of
them, as well. They stand in $3k + f$ coordinates: $\rho_{if} = E_hc_{if} + N_is_{if}$ with $N_i$
orthonormal and orthogonal to $E_h$, where $s_i$ is a root of what $c_i$ leaves of the Gram matrix
of $\rho_i$. N itself is never needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import copy
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.operators.attention import check_masses, in_metric, softmax_kernel
from attnscope.operators.kernels import Gradients, SoftmaxKernel
from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import wide, widened
from attnscope.operators.token_maps import Pairs, TokenMap


def of_heads(attention: Attention, mu: Particles) -> LinearOperator:
    """The derivatives of what each head adds at mu, as one stack (heads, *stack of mu); singular
    values are those of the heads, singular vectors are in coordinates of their own.
    """
    check_masses(attention, mu)
    kernel = softmax_kernel(attention, mu, heads_first=True)
    if kernel is None:
        raise ValueError(
            f"the heads of {attention.name} attention have no closed form together: take the"
            " Jacobian of each, with heads.select(number)."
        )
    stack = (attention.heads.count, *mu.x.shape[:-2])
    weights = mu.weights.expand(*stack, mu.n)

    def exact() -> LinearOperator:
        return of_heads(widened(attention, mu.x.device), widened(mu, mu.x.device))

    return dataclasses.replace(
        stack_operator(_stack(attention, mu, kernel), stack, weights),
        exact=None if mu.x.dtype == torch.float64 else exact,
    )


def head_values(attention: Attention, mu: Particles) -> Float[Tensor, "h *stack n v"]:
    """What each head adds at mu, in the coordinates into which `of_heads` maps."""
    kernel = softmax_kernel(attention, mu, heads_first=True)
    assert kernel is not None, "of_heads has refused this variant"
    shape = (attention.heads.count, *mu.x.shape[:-2], mu.n, -1)
    return _stack(attention, mu, kernel).written(kernel.o).reshape(shape)


def _stack(attention: Attention, mu: Particles, kernel: SoftmaxKernel) -> HeadStack:
    heads = attention.heads
    turn = TokenMap(None if heads.rotary is None else Pairs.rotary(heads.rotary, mu.n))
    matrices = Matrices(heads.query, heads.key, heads.value, heads.output)
    return HeadStack(matrices.reduced(), (turn, turn, TokenMap()), kernel)


def stack_operator(
    made: HeadStack, stack: tuple[int, ...], weights: Float[Tensor, "*stack n"]
) -> LinearOperator:
    """A stack of heads as an operator in the metric of these weights."""
    n, kind = weights.shape[-1], made.into

    def restrict(index: Int[Tensor, " c"]) -> LinearOperator:
        some = weights.flatten(0, -2)[index]
        return stack_operator(made.restricted(index), (len(index),), some)

    plain = LinearOperator(
        lambda u: made.mv(u.reshape(-1, *u.shape[-2:])).reshape(*stack, n, -1),
        lambda y: made.rmv(y.reshape(-1, *y.shape[-2:])).reshape(*stack, n, -1),
        (n, made.into.shape[1]),
        (n, made.rank_out),
        kind.dtype,
        kind.device,
        stack,
        restrict=restrict,
        rounding=made.kernel.rounding(),
    )
    return in_metric(plain, weights)


@runtime_checkable
class KernelOfHeads(Protocol):
    """The derivatives of g softmax problems in their queries, keys and values."""

    o: Float[Tensor, "g n v"]
    slope: Float[Tensor, "g n k"] | None

    def jvp(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def vjp(self, o: Tensor) -> Gradients: ...

    def restricted(self, index: Int[Tensor, " c"]) -> KernelOfHeads: ...

    def rounding(self) -> float: ...


Numbers = tuple[Tensor | None, Tensor | None, Tensor | None]
r"""$\rho$ of the norms over all heads behind queries, keys and values, where there are such; the
same tensor where they are one: keys and values of one latent.
"""


class Matrices(NamedTuple):
    """From tokens, or coordinates of them, to queries, keys and values, and back to what is
    written, or coordinates of it.
    """

    query: Float[Tensor, "h k d"]
    key: Float[Tensor, "h k d"]
    value: Float[Tensor, "h v d"]
    output: Float[Tensor, "h w v"] | None

    def each(self, change: Callable[[Tensor], Tensor]) -> Matrices:
        """Every matrix changed in the same way."""
        output = None if self.output is None else change(self.output)
        return Matrices(change(self.query), change(self.key), change(self.value), output)

    def reduced(self) -> Matrices:
        """The same maps between coordinates of what a head reads and of what it writes."""
        sizes = [part.shape[1] for part in self[:3]]
        into = _triangle(torch.cat(self[:3], dim=1).mT).mT
        query, key, value = into.split(sizes, dim=1)
        output = None if self.output is None else _triangle(self.output)
        return Matrices(query, key, value, output)

    def reduced_with(self, numbers: Numbers) -> tuple[Matrices, Numbers]:
        """The same with numbers that all heads read, "b n d", which become one for each problem,
        "hb n r".
        """
        read = list({id(part): part for part in numbers if part is not None}.values())
        h, sizes = len(self.query), [part.shape[1] for part in self[:3]]
        tall = torch.cat(self[:3], dim=1).mT
        if not read or tall.shape[-1] >= tall.shape[-2]:
            return self.reduced(), each_number(numbers, lambda part: part.repeat(h, 1, 1))
        base, triangle = torch.linalg.qr(tall)
        rho = torch.stack(read, -2)
        inside = torch.einsum("bnfd,hdc->hbnfc", rho, base)
        left = rho @ rho.mT - inside @ inside.mT
        size, turn = torch.linalg.eigh(left)
        outside = turn * size.clamp(min=0).sqrt()[..., None, :]
        parts = iter(torch.cat([inside, outside], -1).flatten(0, 1).unbind(-2))  # in this order
        into = torch.nn.functional.pad(triangle.mT, (0, len(read)))
        query, key, value = into.split(sizes, dim=1)
        made = Matrices(query, key, value, self.reduced().output)
        return made, each_number(numbers, lambda _: next(parts).contiguous())


class HeadStack:
    """Projections and what follows them token by token, around the kernel of g problems (heads
    times sequences).

    Matrices are one per head while the sequences of a head lie side by side, and one per problem
    once the stack was restricted.
    """

    def __init__(
        self,
        matrices: Matrices,
        maps: tuple[TokenMap, TokenMap, TokenMap],
        kernel: KernelOfHeads,
        numbers: Numbers = (None, None, None),
    ) -> None:
        self.sizes = [part.shape[1] for part in matrices[:3]]
        self.into: Float[Tensor, "b r c"] = torch.cat(matrices[:3], dim=1).mT.contiguous()
        self.out = matrices.output
        self.rank_out = self.sizes[2] if self.out is None else self.out.shape[1]
        self.maps, self.kernel, self.numbers = maps, kernel, numbers

    def restricted(self, index: Int[Tensor, " c"]) -> HeadStack:
        """These problems alone."""
        smaller, each = copy(self), self.kernel.o.shape[0] // len(self.into)
        smaller.into = self.into[index // each]
        smaller.out = None if self.out is None else self.out[index // each]
        smaller.kernel = self.kernel.restricted(index)
        query, key, value = (part.of(index) for part in self.maps)
        smaller.maps = query, key, value
        smaller.numbers = each_number(self.numbers, lambda part: part[index])
        return smaller

    @torch.no_grad()
    def mv(self, u: Float[Tensor, "g n r"]) -> Float[Tensor, "g n s"]:
        moved = torch.bmm(_joined(u, self.into), self.into)
        parts = moved.view(len(u), -1, moved.shape[-1]).split(self.sizes, dim=-1)
        numbers = each_number(self.numbers, lambda rho: (rho * u).sum(-1, keepdim=True))
        each = zip(self.maps, parts, numbers, strict=True)
        q, k, v = (change(part, number) for change, part, number in each)
        slope = self.kernel.slope
        return self.written(
            self.kernel.jvp(q, k, v, None if slope is None else (slope * k).sum(-1))
        )

    @torch.no_grad()
    def rmv(self, y: Float[Tensor, "g n s"]) -> Float[Tensor, "g n r"]:
        read = y.clone() if self.out is None else torch.bmm(_joined(y, self.out), self.out)
        q, k, v, bias = self.kernel.vjp(read.view(len(y), y.shape[1], -1))
        if bias is not None and self.kernel.slope is not None:
            k.addcmul_(bias.unsqueeze(-1), self.kernel.slope)
        back = [each.transposed(part) for each, part in zip(self.maps, (q, k, v), strict=True)]
        pulled = _joined(torch.cat([part for part, _ in back], dim=-1), self.into)
        found = torch.bmm(pulled, self.into.mT).view(len(y), y.shape[1], -1)
        returned = dict[int, tuple[Tensor, Tensor]]()
        for rho, (_, number) in zip(self.numbers, back, strict=True):
            if rho is not None and number is not None:
                before = returned.get(id(rho))
                returned[id(rho)] = rho, number if before is None else before[1] + number
        for rho, number in returned.values():
            found.addcmul_(rho, number)
        return found

    def written(self, o: Float[Tensor, "g n v"]) -> Float[Tensor, "g n s"]:
        """What a head's result adds, in coordinates of the range of its output."""
        if self.out is None:
            return o
        return torch.bmm(_joined(o, self.out), self.out.mT).view(len(o), o.shape[1], -1)


def each_number(numbers: Numbers, change: Callable[[Tensor], Tensor]) -> Numbers:
    """Every one that there is changed in the same way; those that are one stay one."""
    read = {id(part): part for part in numbers if part is not None}
    made = {name: change(part) for name, part in read.items()}
    query, key, value = (made.get(id(part)) for part in numbers)
    return query, key, value


def _triangle(tall: Float[Tensor, "h d c"]) -> Float[Tensor, "h r c"]:
    """R of a QR decomposition, r = min(c, d): taken in float64, so that it is the same map in every
    precision; the matrix itself where nothing would be saved.
    """
    if tall.shape[-1] >= tall.shape[-2]:
        return tall
    return torch.linalg.qr(wide(tall), mode="r")[1].to(tall.dtype).to(tall.device)


def _joined(
    vectors: Float[Tensor, "g n w"], matrices: Float[Tensor, "b r c"]
) -> Float[Tensor, "b rows w"]:
    """The tokens of all problems that share a matrix, one after the other."""
    return vectors.reshape(len(matrices), -1, vectors.shape[-1])
