r"""Where Lanczos processes begin: uniformly random directions, or vectors from nearby problems plus
fresh noise; and how small the overlap of such a start with a fixed direction can be.

Cold: $v$ uniform on the sphere. Warm: $v = w + \tau g$ with $w$ any unit vector chosen before the
standard Gaussian $g$ is drawn and $\tau = 1/\sqrt N$, so that both parts weigh about the same. By
Anderson's inequality [anderson55] $w$ can only raise the chance of a large overlap:

$$ P(|\langle v, y\rangle| < \tau\epsilon\sqrt{\pi/2}) \le \epsilon \quad (\|y\| = 1). $$

So what a cold start proves, a warm one proves with $\delta = \tau\epsilon\sqrt{\pi/2}/\|v\|$ in
place of the sphere's. The noise is not rescaled, and it comes from a stream that no earlier draw
has used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from attnscope.operators.bracket import smallest_overlap
from attnscope.operators.operator import LinearOperator
from attnscope.operators.precision import wide


@dataclass(frozen=True, eq=False)
class Near:
    """Vectors close to the leading singular vectors of a stack of problems: `around` of the same
    sequences at another length; zero where nothing is known.

    `run` names the stream of the fresh noise: of two searches one of which starts from what the
    other has found, seed or run must differ.
    """

    around: Float[Tensor, "*stack_and_shape"]
    run: tuple[int, ...]

    def flat(self, op: LinearOperator) -> Float64[Tensor, "b N"]:
        """Unit vectors on the smaller side of the map, where the metric is Euclidean."""
        shape = (*op.stack, *smaller_side(op))
        if self.around.shape != shape:
            raise ValueError(
                f"near must hold vectors of shape {shape} for this map, got"
                f" {tuple(self.around.shape)}."
            )
        found = wide(self.around)
        if op.weights is not None:
            found = found * wide(op.weights).sqrt().unsqueeze(-1)
        found = found.reshape(math.prod(op.stack), -1)
        return found / torch.linalg.vector_norm(found, dim=1, keepdim=True).clamp(min=1e-300)


def smaller_side(op: LinearOperator) -> tuple[int, ...]:
    """The shape of the vectors on which a search runs: its basis is smallest there."""
    return op.out_shape if op.shape[0] < op.shape[1] else op.in_shape


@dataclass(frozen=True, eq=False)
class Starts:
    """Unit vectors to start from, one per problem; `noise` is the part $\\tau/\\|v\\|$ of fresh
    Gaussian noise in each, 0 for a direction drawn uniformly.
    """

    vectors: Float[Tensor, "b N"]
    noise: Float64[np.ndarray, " b"]

    def overlap(self, unlucky: float, warm: float | None = None) -> Float64[np.ndarray, " b"]:
        r"""A $\delta$ for each problem that the overlap with a fixed direction reaches, but for
        this part of all starts (another one of the `warm`).
        """
        cold = smallest_overlap(self.vectors.shape[1], unlucky)
        part = self.noise * (unlucky if warm is None else warm)
        return np.where(self.warm, part * math.sqrt(math.pi / 2), cold)

    def rows(self, which: Int[np.ndarray, " c"]) -> Starts:
        """Those of these problems."""
        return Starts(self.vectors[torch.as_tensor(which)], self.noise[which])

    def beside(self, found: Float[Tensor, "b m N"]) -> Starts:
        """The parts orthogonal to these orthonormal vectors, of norm one again: no overlap with
        another direction that is orthogonal to them becomes smaller.
        """
        kept = self.vectors - torch.bmm(
            torch.bmm(self.vectors.unsqueeze(1), found.mT), found
        ).squeeze(1)
        length = torch.linalg.vector_norm(kept, dim=1, keepdim=True, dtype=torch.float64)
        return Starts(kept / length.clamp(min=1e-300).to(kept.dtype), self.noise)

    @property
    def warm(self) -> Bool[np.ndarray, " b"]:
        return self.noise > 0


def draw(
    op: LinearOperator,
    seed: int,
    attempt: int = 0,
    near: Float64[Tensor, "b N"] | None = None,
    run: tuple[int, ...] = (),
    first: int = 0,
) -> Starts:
    """A start for each problem of a flat stack, from (seed, attempt, problem number, run):
    independent of the size of the stack, whose problems are numbered from `first`.
    """
    problems, size = op.stack[0], op.shape[1]
    noise = np.zeros(problems)
    made = []
    for number in range(problems):
        key = np.random.SeedSequence((seed, attempt, first + number), spawn_key=run)
        state = int(key.generate_state(1, np.uint64)[0] >> np.uint64(1))
        drawn = torch.randn(
            size, generator=torch.Generator().manual_seed(state), dtype=torch.float64
        )
        if near is not None and bool(near[number].any()):
            drawn = near[number].cpu() + drawn / math.sqrt(size)
            noise[number] = 1 / math.sqrt(size) / float(torch.linalg.vector_norm(drawn))
        made.append(drawn / torch.linalg.vector_norm(drawn))
    return Starts(torch.stack(made).to(op.dtype).to(op.device), noise)
