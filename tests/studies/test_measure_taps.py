"""Heads and proved bounds of models without a family file, seen through a tap."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.models import Model, load
from attnscope.studies.measure import measure

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def qwen() -> Model:
    config = transformers.Qwen3Config(
        hidden_size=12,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=4,
        num_hidden_layers=2,
        intermediate_size=16,
        vocab_size=40,
        max_position_embeddings=16,
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module = transformers.Qwen3Model(config).eval()
        for parameter in module.parameters():
            parameter.data = 0.4 * torch.randn_like(parameter)
        return load(module, dtype=torch.float64)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, 40, (60,), generator=torch.Generator().manual_seed(1))


def dense(function: Any, x: Tensor) -> float:
    jacobian = torch.func.jacrev(function)(x).reshape(x.numel(), x.numel())
    return float(torch.linalg.svdvals(jacobian.detach())[0])


def test_every_head_is_that_of_the_dense_jacobian(qwen: Model, ids: Tensor) -> None:
    table = measure(qwen, ids, [5], layers=[1], samples=2, tol=1e-8, bounds=False)
    assert sorted({row.head for row in table if row.head is not None}) == [0, 1, 2]
    for row in table:
        x = qwen.tokens(ids[row.start : row.start + 5], 1)
        # the norms of queries and keys run in float32, whatever the dtype
        assert row.lower == pytest.approx(dense(qwen.function(1, head=row.head), x), rel=1e-6)


def test_proved_bounds_stand_beside_the_constants(qwen: Model, ids: Tensor) -> None:
    table = measure(qwen, ids, [3, 5], samples=1, heads="none")
    for layer in (0, 1):
        names = {bound.name for bound in table["bounds"] if bound.layer == layer}
        assert {"T1''", "TB"} <= names
        sigma = next(row.lower for row in table if (row.layer, row.n) == (layer, 5))
        assert all(sigma <= b.value < 20 * sigma for b in table["bounds"] if b.layer == layer)


def test_a_network_outside_the_door_has_neither(ids: Tensor) -> None:
    config = transformers.BloomConfig(hidden_size=8, n_head=2, n_layer=1, vocab_size=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = load(transformers.BloomModel(config).eval(), dtype=torch.float64)
    assert not model.has_heads(0)
    assert not model.has_bounds(0)
    table = measure(model, ids, [3], samples=1)
    assert [row.head for row in table] == [None]
    assert not list(table["bounds"])
    with pytest.raises(ValueError, match=r"can neither be rebuilt .* nor seen"):
        measure(model, ids, [3], samples=1, heads="all")
