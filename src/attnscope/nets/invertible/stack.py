r"""Residual attention that can be inverted: $y = x + f(x)$, $f$ attention scaled so that a proved
bound keeps it a contraction.

Layers after [behrmann19], with the Lipschitz constants of docs/theorems.md in place of products of
norms: softmax and sigmoid attention on a ball, tied L2 attention everywhere. See docs/invertible.md
for the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.attention import Attention
from attnscope.nets.invertible import logdet
from attnscope.nets.invertible.backward import reversible
from attnscope.nets.invertible.file import read, write
from attnscope.nets.invertible.layer import AttentionWeights, scaled
from attnscope.nets.invertible.logdet import LogDeterminant
from attnscope.nets.invertible.random import random_attention
from attnscope.nets.invertible.scale import check_proved, displacement, lipschitz
from attnscope.nets.invertible.step import Step, size
from attnscope.validation import (
    as_generator,
    brief,
    check_positive,
    check_same_kind,
    check_shape,
    check_tensor,
    described,
)

__all__ = ["Inverse", "Invertible", "LogDeterminant"]

LARGEST = 0.99
"""Largest contraction allowed: the rounding of the weights must not bring it to 1."""
ROOM = 1e-5
"""How much larger than the ball of the inputs, relatively, the ball is on which bounds are proved:
room for rounding.
"""
EXACT_ENTRIES = 128
"""Entries of an input, n times d, up to which log-determinants are exact by default."""


@final
@dataclass(frozen=True, eq=False)
class Inverse:
    r"""The input of a stack found from its output, and how far it can be from the truth in
    Frobenius norm.

    `error_bound` is proved in exact arithmetic: $L/(1-L)$ times the last step of every layer,
    carried back through the layers before it by $1/(1-L)$, with L the constant on the ball that
    holds the tokens found. `rounding` estimates what floating point adds, forward pass included.
    `iterations` are those of each layer, first layer first.
    """

    x: Float[Tensor, "*stack n d"]
    error_bound: Float[Tensor, "*stack"]
    rounding: Float[Tensor, "*stack"]
    iterations: tuple[int, ...]
    converged: bool

    __repr__ = brief


@final
class Invertible(nn.Module):
    r"""A stack of layers $x + \alpha_l f_l(x)$, one per attention, with trainable weights and
    inverse.

    $\alpha_l = \min(1, L/\mathrm{Lip})$, L = `contraction` and Lip the proved constant of $f_l$ for
    up to `tokens` tokens in the ball where its inputs lie: `radius` for the first layer, plus the
    farthest that the layers before can move a token. It is recomputed from the weights,
    differentiably. `radius=None` means the whole space, for tied L2 attention. With `squash=True`
    every layer reads its tokens through $\rho(x) = x/\sqrt{1+|x|^2/R^2}$: inputs may lie anywhere,
    the stack maps the space onto itself, and R is the radius of every layer.
    """

    def __init__(
        self,
        attentions: Attention | Sequence[Attention],
        tokens: int,
        radius: float | None = None,
        contraction: float = 0.9,
        *,
        squash: bool = False,
    ) -> None:
        super().__init__()
        given = [attentions] if isinstance(attentions, Attention) else list(attentions)
        if not given:
            raise ValueError("an invertible stack needs at least one attention, got an empty list.")
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
            raise ValueError(
                "tokens must be a whole number of at least 1, the longest input, got"
                f" {described(tokens)}."
            )
        if radius is not None:
            check_positive("radius", radius)
        elif squash:
            raise ValueError(
                "squash=True needs the radius of the ball that tokens are squashed into."
            )
        check_positive("contraction", contraction)
        if contraction > LARGEST:
            raise ValueError(
                f"contraction must be at most {LARGEST}, got {contraction}: at 1 a residual layer"
                " need not be invertible."
            )
        self.tokens, self.radius, self.contraction, self.squash = (
            tokens,
            radius,
            float(contraction),
            squash,
        )
        for attention in given:
            check_proved(attention, radius)
            check_same_kind(
                "every attention", attention.heads.query, "the first one", given[0].heads.query
            )
            if attention.heads.dim != given[0].heads.dim:
                raise ValueError(
                    f"every attention must have the dimension of the first, {given[0].heads.dim},"
                    f" got {attention.heads.dim}."
                )
        if given[0].heads.query.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                "an invertible stack works in float32 or float64, got"
                f" {given[0].heads.query.dtype}."
            )
        self.layers = nn.ModuleList(AttentionWeights(attention) for attention in given)

    @classmethod
    def random(
        cls,
        variant: str,
        depth: int,
        tokens: int,
        dim: int,
        radius: float,
        contraction: float = 0.9,
        *,
        heads: int = 1,
        causal: bool = False,
        squash: bool = False,
        dtype: torch.dtype = torch.float64,
        generator: torch.Generator | int = 0,
    ) -> Invertible:
        """`depth` random layers for tokens in the ball of this radius. L2 attention is tied, for
        the whole space unless squashed.
        """
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ValueError(f"depth must be a whole number of at least 1, got {described(depth)}.")
        check_positive("radius", radius)
        source = as_generator(generator, torch.device("cpu"))
        attentions = [
            random_attention(variant, dim, heads, radius, causal, source, dtype)
            for _ in range(depth)
        ]
        everywhere = attentions[0].lipschitz_if_tied and not squash
        return cls(attentions, tokens, None if everywhere else radius, contraction, squash=squash)

    def save(self, path: str | Path) -> None:
        """Write weights and settings to one .npz file."""
        settings = {
            "tokens": self.tokens,
            "radius": self.radius,
            "contraction": self.contraction,
            "squash": self.squash,
        }
        write(
            Path(path),
            [layer for layer in self.layers if isinstance(layer, AttentionWeights)],
            self.state_dict(),
            settings,
        )

    @classmethod
    def load(cls, path: str | Path) -> Invertible:
        """The stack that `save` wrote, bit by bit, on the CPU."""
        attentions, settings, state = read(Path(path))
        made = cls(attentions, **settings)
        made.load_state_dict(state)
        return made

    def steps(self) -> list[Step]:
        """The layers as they act now: scaled attention, its proved Lipschitz constant and the ball
        of its inputs.
        """
        found = []
        radius = (
            None
            if self.radius is None
            else torch.tensor(self.radius * (1 + ROOM), dtype=torch.float64)
        )
        for layer in self.layers:
            assert isinstance(layer, AttentionWeights)
            attention, precise = layer.attention(), layer.attention(torch.float64)
            radius = None if radius is None else radius.to(precise.heads.query.device)
            bound = lipschitz(precise, layer.reads(), self.tokens, radius)
            alpha = self.contraction / bound.clamp(min=self.contraction)
            rounding = 16 * torch.finfo(attention.heads.query.dtype).eps
            constant = min(float(bound.detach()), self.contraction) * (1 + rounding)
            reads = layer.reads()
            reads = None if reads is None else (alpha * reads).detach()
            ball = None if radius is None else float(radius.detach())
            found.append(Step(scaled(attention, alpha), constant, ball, self.squash, reads))
            if radius is not None and not self.squash:
                radius = radius + (1 + ROOM) * alpha * displacement(precise, radius)
        return found

    def attentions(self) -> list[Attention]:
        """The scaled attentions, apart from the graph: `x + attention(x, Particles(x))` is a layer
        (without `squash`).
        """
        return [step.detached().attention for step in self.steps()]

    def radii(self) -> tuple[float | None, ...]:
        """The radius of the ball that the inputs of each layer lie in, None for the whole space."""
        return tuple(step.radius for step in self.steps())

    def forward(
        self, x: Float[Tensor, "*stack n d"], store: bool = False
    ) -> Float[Tensor, "*stack n d"]:
        """The stack at x. Backward finds activations again by the inverse; `store=True` keeps them,
        as plain autograd does.
        """
        steps = self.steps()
        self._check_input("x", x, steps[0].ball)
        if not store:
            return reversible(x, steps)
        for step in steps:
            x = x + step.move(x)
        return x

    @torch.no_grad()
    def inverse(
        self, y: Float[Tensor, "*stack n d"], tol: float | None = None, most: int | None = None
    ) -> Inverse:
        """The x with image y, by fixed-point iteration to the error `tol` per layer (default: to
        rounding), at most `most` times per layer.

        On a ball a y that no input in the ball has as its image is refused.
        """
        if tol is not None:
            check_positive("tol", tol)
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError(f"most must be a whole number of at least 1, got {described(most)}.")
        self._check_input("y", y, None)
        proved = torch.zeros(y.shape[:-2], dtype=torch.float64, device=y.device)
        rounding, converged, x = proved.clone(), True, y
        steps, iterations = self.steps(), list[int]()
        for number, step in reversed(list(enumerate(steps, start=1))):
            solved = step.invert(x, tol, most)
            if solved.converged and converged and step.ball is not None:
                step.check_reached(number, x, solved)
            noise = (
                2
                * (y.shape[-2] + 4 * y.shape[-1])
                * torch.finfo(y.dtype).eps
                * (size(x) + size(solved.x))
            )
            far = (proved + rounding + noise + solved.step) / (1 - step.constant)
            reach = float(torch.linalg.vector_norm(solved.x, dim=-1).max()) + float(far.max())
            constant = step.constant_within(y.shape[-2], reach)
            proved = (proved + constant * solved.step) / (1 - constant)
            rounding = (rounding + noise) / (1 - constant)
            x, converged = solved.x, converged and solved.converged
            iterations.insert(0, solved.iterations)
        return Inverse(x, proved, rounding, tuple(iterations), converged)

    def log_determinant(
        self,
        x: Float[Tensor, "*stack n d"],
        method: Literal["exact", "series"] | None = None,
        *,
        probes: int = 16,
        terms: int | None = None,
        generator: torch.Generator | int = 0,
    ) -> LogDeterminant:
        r"""$\log|\det D_x|$ of the stack, differentiable: exact up to 128 entries of x by default,
        else an estimate from the series.

        The series uses `probes` random signs and `terms` terms (default: as many as make the part
        left out 1e-3 per layer, at most 200).
        """
        if method not in (None, "exact", "series"):
            raise ValueError(f'method must be "exact", "series" or None, got {described(method)}.')
        if isinstance(probes, bool) or not isinstance(probes, int) or probes < 2:
            raise ValueError(
                "probes must be a whole number of at least 2 (their spread is the error estimate),"
                f" got {described(probes)}."
            )
        if terms is not None and (
            isinstance(terms, bool) or not isinstance(terms, int) or terms < 1
        ):
            raise ValueError(f"terms must be a whole number of at least 1, got {described(terms)}.")
        steps = self.steps()
        self._check_input("x", x, steps[0].ball)
        small = x.shape[-2] * x.shape[-1] <= EXACT_ENTRIES
        if method == "exact" or (method is None and small):
            return logdet.exact(steps, x)
        return logdet.estimated(steps, x, probes, terms, as_generator(generator, x.device))

    def _check_input(self, name: str, x: Tensor, ball: float | None) -> None:
        first = self.layers[0]
        assert isinstance(first, AttentionWeights)
        weights = first.weights["query"]
        check_tensor(name, x, "... n d")
        check_same_kind(name, x, "the weights", weights)
        check_shape(name, x, (*x.shape[:-1], weights.shape[-1]), "the dimension of the heads")
        if x.shape[-2] > self.tokens:
            raise ValueError(
                f"this stack is a proved contraction for at most {self.tokens} tokens, got"
                f" {x.shape[-2]}. Build it with tokens=..."
            )
        if ball is not None:
            largest = float(torch.linalg.vector_norm(x.detach(), dim=-1).max())
            if largest > ball:
                raise ValueError(
                    f"no contraction is proved outside the ball of radius {self.radius:.6g}, and"
                    f" {name} has a token of norm {largest:.6g}. Scale the tokens, pass a larger"
                    " radius, or use squash=True."
                )
