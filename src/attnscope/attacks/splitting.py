r"""Mass splitting: does it help an attacker to cut tokens in two before moving them? An exact law
[castin24, first version].

Split every token in copies and let the copies move on their own. Attention reads the measure only,
so a common move of the copies acts as $D_Xf$, and moves of the copies against each other act as
$D_i = D_x\Gamma_\mu(x_i)$ on each token by itself: the constant becomes $\max(\|D_Xf\|,
\max_i\|D_i\|)$.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import Attention
from attnscope.measures import Particles
from attnscope.operators import LinearOperator, jacobian, spectral_norm
from attnscope.validation import brief, described

ACCURACY = 1e-12
MOST_PAIRS = 400


@final
@dataclass(frozen=True, eq=False)
class Split:
    r"""`move` is $\|D_Xf\|$ in $L^2(\mu)$, the constant of moving tokens; `split` is
    $\max_i\|D_x\Gamma_\mu(x_i)\|$, of moving halves.

    `gain` is the constant with splitting over that without, max(move, split) / move, at least 1.
    The best split sends the halves of `token` apart along `direction`; the best move is `motion`,
    of norm one in $L^2(\mu)$. `apart` has $\|D_i\|$ of every token.
    """

    move: float
    split: float
    token: int
    direction: Float[Tensor, " d"]
    motion: Float[Tensor, "n d"]
    apart: Float[Tensor, " n"]
    converged: bool
    """Whether both constants reached their accuracy; each is a lower bound in any case."""

    __repr__ = brief

    @property
    def constant(self) -> float:
        """The local constant of attention when mass may be split."""
        return max(self.move, self.split)

    @property
    def gain(self) -> float:
        return (
            self.constant / self.move
            if self.move > 0
            else (1.0 if self.split == 0 else float("inf"))
        )

    @property
    def pays(self) -> bool:
        """Whether splitting beats moving."""
        return self.split > self.move

    def __str__(self) -> str:
        better = "splitting beats moving" if self.pays else "moving is at least as strong"
        return (
            f"move {self.move:.6g}, split {self.split:.6g} (token {self.token}), gain"
            f" {self.gain:.6g}: {better}"
        )


def split(attention: Attention, mu: Particles) -> Split:
    r"""The exact law of mass splitting at mu, for any weights, heads and variant.

    Under a causal mask the copies of a token share its position and see each other, as measures on
    $[0,1]\times R^d$ have it; for copies written one after the other there is no such law. The same
    holds for heads that read the number of a token in its sequence.
    """
    check_splittable(attention, mu)
    attention, mu = attention.to(torch.float64), mu.to(torch.float64)
    moved = spectral_norm(jacobian(attention, mu), tol=ACCURACY, max_pairs=MOST_PAIRS)
    found = spectral_norm(query_jacobians(attention, mu), tol=ACCURACY, max_pairs=MOST_PAIRS)
    apart = torch.as_tensor(found.lower)
    token = int(apart.argmax())
    return Split(
        move=float(moved.lower),
        split=float(apart[token]),
        token=token,
        direction=found.right[token],
        motion=moved.right / mean_square(mu, moved.right).sqrt(),
        apart=apart,
        converged=bool(moved.converged) and bool(torch.as_tensor(found.converged).all()),
    )


def mean_square(mu: Particles, motion: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    r"""$\int|v|^2d\mu$: singular vectors at uniform weights come with Euclidean norm one."""
    return (mu.weights * motion.square().sum(-1)).sum()


def query_jacobians(attention: Attention, mu: Particles) -> LinearOperator:
    r"""$D_x\Gamma_\mu(x_i)$, the measure held fixed: one map on $R^d$ for every token, as a
    stack.
    """
    positions = mu.places() if attention.causal or attention.heads.positional else None
    op = jacobian(lambda x: attention.dense(x, mu, positions), mu.x, stack=1)
    return replace(op, restrict=None)


def check_splittable(attention: object, mu: object) -> None:
    """Refuse what has no mass to split."""
    if not isinstance(attention, Attention):
        raise TypeError(
            f"splitting needs an attention such as Softmax(heads), got {described(attention)}."
        )
    if not isinstance(mu, Particles):
        raise TypeError(
            f"splitting needs a Particles, got {described(mu)}. Sample a Gaussian first."
        )
    if mu.x.ndim != 2:
        raise ValueError(
            "splitting takes one measure, x of shape (n, d), got a stack of shape"
            f" {tuple(mu.x.shape)}. Call it once for each."
        )
    if mu.n < 2:
        raise ValueError(
            "splitting needs at least 2 tokens, got 1: the halves of a single token read the same"
            " single token."
        )
