"""Bounds on norm+attention and residual of tapped models hold at the tokens, and for moves along
the top direction.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES
from networks import loaded

# Norm before; norms on both sides with gains 1 + w; norm after; after the residual; side by side.
KINDS = ("qwen3", "gemma2", "olmo2", "electra", "phi")


@pytest.mark.parametrize("name", KINDS)
def test_no_derivative_and_no_move_passes_the_bound(name: str) -> None:
    case = ARCHITECTURES[name]
    model: Any = loaded(case.build())
    ids = model.sample(4)[0]
    plain = {bound.name: bound.value for bound in model.bounds(case.layer, ids)}
    for part in ("norm+attention", "residual"):
        x = model.tokens(ids, case.layer, part)
        function = model.function(case.layer, part)
        dense = torch.func.jacrev(function)(x).detach().reshape(x.numel(), -1)
        top = float(torch.linalg.matrix_norm(dense, 2))
        found = {bound.name: bound for bound in model.bounds(case.layer, ids, part)}
        assert set(found) == set(plain)
        for bound in found.values():
            assert bound.kind == "proved"
            assert "norm layer" in bound.assumes
            assert top <= bound.value <= 40 * top
        direction = torch.linalg.svd(dense).Vh[0].reshape(x.shape)
        with torch.no_grad():
            for size in (1e-3, 1e-5):
                moved = (function(x + size * direction) - function(x)).norm() / size
                assert moved <= found["TB"].value


def test_what_no_theorem_covers_is_one_sentence() -> None:
    case = ARCHITECTURES["granite"]
    model: Any = loaded(case.build())
    ids = model.sample(4)[0]
    with pytest.raises(ValueError, match="more than its attention, norms and residual"):
        model.bounds(case.layer, ids, "residual")
    with pytest.raises(ValueError, match="theorems cover attention, norm"):
        model.bounds(case.layer, ids, "mlp")
