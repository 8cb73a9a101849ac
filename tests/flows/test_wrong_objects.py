"""What is no attention, no measure or no flow is refused by its class, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscope import Heads, Particles, Softmax
from attnscope.attacks import curves
from attnscope.bounds import norm_lipschitz, through_norm
from attnscope.bounds.near.queries import tokens_over_ball
from attnscope.flows import clusters, energy
from attnscope.flows.stability import distances, radius_bound, stability_bound, velocity_lipschitz

X = torch.eye(2, dtype=torch.float64)
ATTENTION = Softmax(Heads.from_matrices(X, X))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [None, 3, X, "x", object()])
@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: energy(wrong, Particles(X)),
        lambda wrong: energy(ATTENTION, wrong),
        lambda wrong: clusters(wrong, 1.0),
        lambda wrong: distances(wrong, wrong),
        lambda wrong: radius_bound(wrong, 1.0, 1.0),
        lambda wrong: stability_bound(wrong, 1.0, 1.0),
        lambda wrong: velocity_lipschitz(wrong, 1.0),
        lambda wrong: norm_lipschitz(wrong, X),
        lambda wrong: through_norm(wrong, None, X, norm_first=True, residual=True),
        lambda wrong: curves(ATTENTION, wrong, [1.0]),
        lambda wrong: curves(ATTENTION, [2], wrong),
    ],
)
def test_wrong_objects(call: Callable[[Any], object], wrong: object) -> None:
    with pytest.raises(TypeError, match="must be of class"):
        call(wrong)


@pytest.mark.usefixtures("unchecked")
def test_one_input_is_no_stack() -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(b n d\)"):
        tokens_over_ball(ATTENTION, X, 0.1, 1.0)
