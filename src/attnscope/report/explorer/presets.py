"""Starting points of the explorer: the settings of the papers' figures, and what to look for.

Matrices of a figure are those of its study, so that page and study show the same flow; the reader
may switch between its attentions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Attention, Heads
from attnscope.attention.softmax import Softmax
from attnscope.bounds.constructions import opposite
from attnscope.flows import Sphere
from attnscope.studies.papers import find

GAUSSIANS = "A Gaussian, as in the paper"
CROWDS = "A crowd of tokens"
SMOOTH = "How smooth?"
TWO_LINES, MIXED = 1, 0
"""The draws that the figures show: the first ones that stay bounded, or do both."""
UNSCALED = 2**-0.5
"""With this temperature Sinkhorn attention has the scores <Kx, Qy> of the figures, undivided."""
DIGITS = 6
"""Of the places of tokens."""


@dataclass(frozen=True)
class Preset:
    """A starting point; `sees` says what happens, `says` what is known about it and how."""

    name: str
    title: str
    group: str
    sees: str
    says: str
    state: dict[str, Any]


def all_presets() -> list[Preset]:
    """All starting points, in the order in which they are offered."""
    return [*_clouds(), *_gaussians(), *_smoothness()]


def _gaussians() -> list[Preset]:
    figures: Mapping[str, Any] = find()
    made = {
        name: figures[name].attentions(figures[name].Config())
        for name in ("to_zero", "line", "plane", "explosion")
    }
    bounded = figures["two_lines"].attentions(figures["two_lines"].Config(), TWO_LINES)
    both = figures["mixed"].attentions(figures["mixed"].Config(), MIXED)
    (plane,) = made["plane"].values()
    return [
        Preset(
            "to-zero",
            "To zero",
            GAUSSIANS,
            "K = -Q and V = RRᵀ: the ellipse shrinks to a point, ever more slowly. L2, Sinkhorn "
            "and two heads do the same.",
            "Proved for softmax: the symmetric part of A is negative and V positive, so S → 0.",
            _ellipse(made["to_zero"], [[0.7, 0.25], [0.25, 0.3]], speed=3.0),
        ),
        Preset(
            "line",
            "Onto a line",
            GAUSSIANS,
            "Q is one row q and K = -q: the ellipse collapses onto the dashed line, orthogonal "
            "to q. All tokens end up on a line: rank one.",
            "Proved for softmax with V = I: the limit has the rank of the kernel of A + Aᵀ, "
            "here 1.",
            _ellipse(made["line"], [[0.7, 0.25], [0.25, 0.3]], speed=3.0),
        ),
        Preset(
            "plane",
            "Two heads, one empty",
            GAUSSIANS,
            "The second head reads nothing. The ellipse comes to rest with both axes alive: two "
            "heads need not collapse to rank one.",
            "Seen in the paper's figure: limits satisfy (Sq)₁ = 0, a plane of covariances.",
            _ellipse({"softmax": plane}, [[0.6, 0.2], [0.2, 0.4]], speed=3.0),
        ),
        Preset(
            "two-lines",
            "Onto one of two lines",
            GAUSSIANS,
            "Scores that attract along one axis and repel along another, and a random V: the "
            "ellipse becomes flat along one of the dashed lines ⟨Ax,x⟩ = 0.",
            "Seen in the paper's figure and in ours (draw 1 of seed 0), not proved in general.",
            _ellipse(bounded, [[0.5, 0.1], [0.1, 0.5]]),
        ),
        Preset(
            "explosion",
            "Explosion",
            GAUSSIANS,
            "The symmetric part of A is positive: under softmax the ellipse explodes in finite "
            "time. Choose L2 or Sinkhorn: it only grows.",
            "Proved for softmax with V = I: it blows up exactly at 1/(2λ), λ the largest "
            "eigenvalue of S₀(A + Aᵀ)/2. Sinkhorn grows at most like e^(2|V|t).",
            _ellipse(made["explosion"], [[0.5, 0.0], [0.0, 0.5]], growing=False, speed=0.3),
        ),
        Preset(
            "mixed",
            "It depends on where you start",
            GAUSSIANS,
            "One attention, two fates: this ellipse flattens onto a line. Rewind, turn it by "
            "dragging the end of its long axis, and run again: some directions explode.",
            "Seen in the paper's figure and in ours (draw 0 of seed 0): about half of the "
            "starts blow up. Not proved.",
            _ellipse(both, [[0.9, 0.0], [0.0, 0.1]], growing=False, speed=1.0),
        ),
    ]


def _clouds() -> list[Preset]:
    eye2, eye3 = (torch.eye(d, dtype=torch.float64) for d in (2, 3))
    return [
        Preset(
            "sphere",
            "Clusters on the sphere",
            CROWDS,
            "Tokens that a normalisation layer keeps on the sphere gather in clusters, and "
            "clusters in larger ones. The sharper the kernel (double A), the longer they last.",
            "Proved: the energy can only rise. That clusters are few and last long is an "
            "observation.",
            _cloud(4 * eye3, eye3, _normal(64, 3, 0), "sphere", speed=1.0),
        ),
        Preset(
            "circle",
            "Clusters on the circle",
            CROWDS,
            "A sharp kernel, A = 25 I, on the circle: several clusters form at once and then "
            "hardly move: they are metastable. Halve A and they merge.",
            "Proved: the energy can only rise. The number of clusters is an observation.",
            _cloud(25 * eye2, eye2, _normal(120, 2, 1), "circle", speed=1.0),
        ),
        Preset(
            "causal",
            "The first token leads",
            CROWDS,
            "Causal attention: the first token (it reads itself only) stays where it is, and the "
            "others, coloured by their order, come to it one after the other.",
            "Proved here: with V = I the first token has no tangent velocity. That all others "
            "come to it is an observation.",
            _cloud(3 * eye2, eye2, _normal(60, 2, 2), "circle", causal=True, speed=1.0),
        ),
        Preset(
            "runaway",
            "Running away",
            CROWDS,
            "In the plane with A = V = I tokens run away from the centre and gather behind a few "
            "leaders; zoom out goes by itself.",
            "Proved: the radius stays below R(0) eᵗ, the dashed line of its chart.",
            _cloud(eye2, eye2, _normal(150, 2, 3), "plane", speed=1.0),
        ),
        Preset(
            "sinkhorn",
            "Sinkhorn on the circle",
            CROWDS,
            "Every token is read exactly as much as it reads. Choose softmax instead, rewind and "
            "run again to compare.",
            "Proved: the energy, that of an optimal transport problem, can only rise.",
            _cloud(4 * eye2, eye2, _normal(100, 2, 4), "circle", variant="sinkhorn", speed=1.0),
        ),
    ]


def _smoothness() -> list[Preset]:
    eye = torch.eye(2, dtype=torch.float64)
    attention = Softmax(Heads.from_matrices(-eye, eye))
    worst = opposite(attention, 30, 1.3)
    zero = torch.zeros(2, 2, dtype=torch.float64)
    return [
        Preset(
            "rare-token",
            "One rare token",
            SMOOTH,
            "29 tokens in one place and one opposite: all of them read it, so that moving it "
            "moves them all. σ is large; drag the rare token to the others and see it fall.",
            f"Proved from below: σ is at least {worst.bound.value:.4g} here (U2), and grows "
            "like the root of the number of tokens up to about 30 of them.",
            _cloud(-eye, eye, worst.mu.x, "plane", speed=0.1),
        ),
        Preset(
            "averages",
            "Causal averages",
            SMOOTH,
            "A = 0: every token reads the average of those before it. Without the mask σ is 1; "
            "with it σ grows with the number of tokens.",
            "Proved: its limit is 2 (Hardy), so the bounds for unmasked attention do not hold "
            "under a mask.",
            _cloud(zero, eye, _normal(100, 2, 5), "plane", causal=True, speed=0.3),
        ),
    ]


def _ellipse(
    attentions: Mapping[str, Attention],
    cov: list[list[float]],
    speed: float = 1.0,
    growing: bool = True,
) -> dict[str, Any]:
    """A Gaussian under the heads of a figure; tokens drawn from it stand by."""
    softmax, distance = attentions["softmax"].heads, attentions.get("L2", attentions["softmax"])
    heads = [
        {
            "A": _flat(softmax.a[h]),
            "Q": _flat(_square(distance.heads.query[h]) * distance.heads.scale**0.5),
            "K": _flat(_square(distance.heads.key[h]) * distance.heads.scale**0.5),
            "V": _flat(softmax.values[h]),
        }
        for h in range(softmax.count)
    ]
    factor = torch.linalg.cholesky(torch.tensor(cov, dtype=torch.float64))
    return {
        "measure": "gaussian",
        "heads": heads,
        "eps": UNSCALED,
        "factor": _flat(factor),
        "x": _rounded(_normal(120, 2, 6) @ factor.mT),
        "speed": speed,
        "growing": growing,
    }


def _cloud(
    scores: Tensor,
    values: Tensor,
    x: Tensor,
    space: str,
    variant: str = "softmax",
    causal: bool = False,
    speed: float = 1.0,
) -> dict[str, Any]:
    """Tokens under one head. For L2 attention keys are I/2 and queries A, so that 2 K^T Q = A."""
    half = torch.eye(len(scores), dtype=torch.float64) / 2
    head = {"A": scores, "Q": scores, "K": half, "V": values}
    return {
        "variant": variant,
        "causal": causal,
        "space": space,
        "heads": [{name: _flat(matrix) for name, matrix in head.items()}],
        "x": _rounded(x if space == "plane" else Sphere()(x)),
        "speed": speed,
    }


def _normal(n: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, dtype=torch.float64, generator=generator)


def _square(rows: Tensor) -> Tensor:
    """A head with fewer rows than tokens have coordinates, filled with zeros."""
    made = rows.new_zeros(rows.shape[1], rows.shape[1])
    made[: len(rows)] = rows
    return made


def _flat(matrix: Tensor) -> list[float]:
    return [float(entry) for entry in matrix.flatten()]


def _rounded(x: Tensor) -> list[float]:
    return [round(float(entry), DIGITS) for entry in x.flatten()]
