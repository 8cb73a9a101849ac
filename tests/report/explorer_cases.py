"""The same attention twice: as the library has it, and as the explorer's page reads it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import attnscope as asc

EPS, BIAS = 0.7, 0.4
VARIANTS = {"softmax": asc.Softmax, "l2": asc.L2, "sinkhorn": asc.Sinkhorn, "sigmoid": asc.Sigmoid}
MORE: dict[str, dict[str, float]] = {"sinkhorn": {"eps": EPS}, "sigmoid": {"bias": BIAS}}

CLOUDS = (
    # variant, dimension, on the sphere, causal, heads, weighted
    ("softmax", 2, False, False, 1, True),
    ("softmax", 3, True, True, 2, False),
    ("l2", 2, True, False, 2, True),
    ("l2", 2, False, True, 1, True),
    ("sinkhorn", 2, False, False, 1, True),
    ("sinkhorn", 3, True, False, 2, False),
    ("sigmoid", 3, True, False, 1, True),
    ("sigmoid", 2, False, True, 2, False),
)


class Made(NamedTuple):
    """An attention, and what the page needs to make the same."""

    attention: asc.attention.Attention
    told: dict[str, Any]


def made(variant: str, dim: int, heads: int, causal: bool, generator: torch.Generator) -> Made:
    a, q, k, v = (
        0.7 * torch.randn(heads, dim, dim, dtype=torch.float64, generator=generator)
        for _ in range(4)
    )
    eye = torch.eye(dim, dtype=torch.float64).expand_as(a)
    pair = (q, k) if variant == "l2" else (a, eye)
    attention = VARIANTS[variant](
        asc.Heads(*pair, v, scale=1.0), causal=causal, **MORE.get(variant, {})
    )
    named = {"A": a, "Q": q, "K": k, "V": v}
    told = {
        "variant": variant,
        "causal": causal,
        "eps": EPS,
        "bias": BIAS,
        "heads": [{name: flat(m[h]) for name, m in named.items()} for h in range(heads)],
    }
    return Made(attention, told)


def flat(x: Tensor) -> list[float]:
    return x.flatten().tolist()


ATTENTION = """
const { VARIANTS } = explorer["variants.js"];
const attentionOf = (told) => ({ ...told, variant: VARIANTS[told.variant] });
const reached = (integrator, y, time) => {
  integrator.begin(y, 0);
  integrator.reach(time);
  integrator.at(time, y);
  return Array.from(y);
};
"""
"""What scripts in the page share: an attention from what is told, and a flow up to a time."""

RUN_CLOUDS = (
    "(cases) => {"
    + ATTENTION
    + """
  const { Cloud } = explorer["motion.js"];
  const { Measurement } = explorer["measurement.js"];
  return cases.map(({ told, x, masses, dim, round, time }) => {
    const attention = attentionOf(told);
    const y = Float64Array.from(x);
    const measured = new Measurement(attention, y, masses, dim, 0);
    measured.work();
    const cloud = new Cloud(attention, masses, dim, round);
    cloud.field.place(y);
    const energy = cloud.field.energy();
    const state = reached(cloud.integrator, y, time);
    const bounds = Object.fromEntries(measured.bounds.map(({ name, value }) => [name, value]));
    const direction = Array.from(measured.direction);
    return { state, sigma: measured.sigma, direction, bounds, energy };
  });
}"""
)

RUN_ELLIPSES = (
    "(cases) => {"
    + ATTENTION
    + """
  const { Ellipse, gaussianOf } = explorer["motion.js"];
  const { gaussianStretch } = explorer["measurement.js"];
  return cases.map(({ told, mean, factor, time }) => {
    const attention = attentionOf(told);
    const y = Float64Array.of(...mean, ...factor);
    const ellipse = new Ellipse(attention);
    const { value } = gaussianStretch(attention, y);
    const energy = ellipse.energy(y);
    reached(ellipse.integrator, y, time);
    const { mean: m, cov } = gaussianOf(y);
    return { mean: Array.from(m), cov: Array.from(cov), stretch: value, energy };
  });
}"""
)
