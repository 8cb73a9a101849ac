"""Moving tokens of a model along its top singular direction: predictions, shares and copies, for
every family.
"""

from __future__ import annotations

import pytest
import torch
from networks import KINDS, build, inputs, loaded, shared
from torch import Tensor, nn

from attnscope.models import PARTS, Model, Part


def dense(model: Model, layer: int, part: Part, x: Tensor) -> Tensor:
    return torch.func.jacrev(model.function(layer, part))(x).detach().reshape(x.numel(), x.numel())


@pytest.mark.parametrize("name", KINDS)
def test_the_prediction_holds_for_small_moves_of_every_family(name: str) -> None:
    model = shared(name)
    source = inputs(name, count=1, n=4)[0]
    x = model.tokens(source, 1)
    coarse = KINDS[name].float32_inside
    found = model.perturb(1, source, [1e-3, 2e-3, 4e-3])
    jacobian = dense(model, 1, "attention", x)
    assert found.sigma == pytest.approx(
        float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-5 if coarse else 1e-7
    )
    assert float(torch.linalg.vector_norm(found.direction)) == pytest.approx(1)
    torch.testing.assert_close(found.carried, found.direction.square().sum(-1))
    assert float(found.received.sum()) == pytest.approx(1)
    response = (jacobian @ found.direction.flatten()).reshape(x.shape)
    assert float(torch.linalg.vector_norm(response)) == pytest.approx(
        found.sigma, rel=1e-4 if coarse else 1e-7
    )
    torch.testing.assert_close(
        found.received,
        response.square().sum(-1) / found.sigma**2,
        rtol=1e-3,
        atol=1e-4 if coarse else 1e-6,
    )
    for step in found.steps:
        change = [
            model.function(1, "attention")(x + sign * step.eps * found.direction)
            - model.function(1, "attention")(x)
            for sign in (1, -1)
        ]
        assert step.actual == pytest.approx(
            max(float(torch.linalg.vector_norm(part.detach())) for part in change), rel=1e-9
        )
        assert step.predicted == pytest.approx(step.eps * found.sigma, rel=1e-4)
        assert step.actual == pytest.approx(step.predicted, rel=max(2 * step.error, 1e-6))
    errors = [step.error for step in found.steps]
    if not coarse:
        assert errors[1] / errors[0] == pytest.approx(2, rel=0.2)
        assert errors[2] / errors[1] == pytest.approx(2, rel=0.2)
        assert found.linear_until(errors[1] * 1.01) == 2e-3
        assert found.linear_until(errors[0] / 2) == 0
    assert found.carriers(1) == [(int(found.carried.argmax()), float(found.carried.max()))]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_copies_are_those_of_the_sequence_with_every_token_written_twice(
    name: str, part: Part
) -> None:
    model = shared(name)
    source = inputs(name, count=1, n=4)[0]
    x = model.tokens(source, 1, part)
    found = model.perturb(1, source, 1e-3, part).duplication
    assert found is not None
    n, d = x.shape
    whole = dense(model, 1, part, x.repeat_interleave(2, 0)).reshape(2 * n * d, n, 2, d)
    for sign, constant in ((1, found.move), (-1, found.split)):
        restricted = ((whole[:, :, 0] + sign * whole[:, :, 1]) / 2**0.5).reshape(2 * n * d, n * d)
        assert constant == pytest.approx(float(torch.linalg.matrix_norm(restricted, 2)), rel=1e-7)
    for steps, constant in ((found.move_steps, found.move), (found.split_steps, found.split)):
        assert steps[0].actual / steps[0].eps == pytest.approx(
            constant, rel=max(2 * steps[0].error, 1e-6)
        )
    if name == "bert":
        assert found.move == pytest.approx(
            float(torch.linalg.matrix_norm(dense(model, 1, part, x), 2)), rel=1e-7
        )
    if part == "attention":
        assert found.law is not None
        same = found.split == pytest.approx(found.law.split, rel=1e-6)
        assert same == (
            name == "bert"
        )  # under a mask copies one after the other do not obey the law
        assert found.token == found.law.token or name == "gpt2"
    else:
        assert found.law is None


def test_a_network_of_unknown_structure_can_be_perturbed() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64).eval()
    model = loaded(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval())
    source = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = model.perturb(0, source, part="block")
    assert found.refusal is None
    assert found.duplication is not None
    assert found.duplication.move == pytest.approx(found.sigma, rel=1e-6)
    assert found.duplication.law is None
    assert len(found.steps) == 6


def test_a_model_that_cannot_read_twice_as_many_tokens_says_so() -> None:
    model = loaded(build("mpnet"))
    found = model.perturb(1, inputs("mpnet", count=1, n=8)[0])
    assert found.duplication is None
    assert found.refusal is not None
    assert "at most" in found.refusal


@pytest.mark.usefixtures("unchecked")
def test_moves_that_make_no_sense_are_refused() -> None:
    model = loaded(build("gpt2"))
    ids = inputs("gpt2", count=2)
    for eps in (0.0, -1.0, [], float("nan")):
        with pytest.raises(ValueError, match="eps must be"):
            model.perturb(1, ids[0], eps)
    with pytest.raises(ValueError, match="one sequence"):
        model.perturb(1, ids, 0.1)
    with pytest.raises(ValueError, match="layer must be"):
        model.perturb(9, ids[0], 0.1)
    with pytest.raises(ValueError, match="part must be"):
        model.perturb(1, ids[0], 0.1, "brain")  # type: ignore[arg-type]
