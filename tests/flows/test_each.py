"""Many Gaussians at once, each under its own attention: the method, and the flow against closed
forms and against `flow`, member by member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import scipy.integrate
import torch

from attnscope import L2, Gaussian, Heads, Linear, NoClosedForm, Sigmoid, Sinkhorn, Softmax
from attnscope.attention import Attention
from attnscope.flows import flow, flow_each, residual, rosenbrock

Randn = Callable[..., torch.Tensor]


def hunted(y: torch.Tensor) -> torch.Tensor:
    """Foxes and rabbits."""
    rabbits, foxes = y.unbind(-1)
    return torch.stack([rabbits * (1 - foxes), foxes * (rabbits - 1)], dim=-1)


def steps(number: int, end: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Where that many equal steps lead, and the error that the first one reports."""
    y = torch.tensor([[1.5, 0.5]], dtype=torch.float64)
    h, first = torch.tensor([end / number], dtype=torch.float64), None
    for _ in range(number):
        jacobian = torch.func.vmap(torch.func.jacfwd(hunted))(y)
        y, error = rosenbrock.step(hunted, jacobian, y, h)
        first = error if first is None else first
    assert first is not None
    return y[0], torch.linalg.vector_norm(first)


def test_the_method_has_order_four_and_its_estimate_order_three() -> None:
    exact = scipy.integrate.solve_ivp(
        lambda t, y: hunted(torch.from_numpy(y)).numpy(), (0, 2), [1.5, 0.5], rtol=1e-13, atol=1e-14
    ).y[:, -1]
    made = [steps(number) for number in (20, 40, 80)]
    errors = [torch.linalg.vector_norm(y - torch.from_numpy(exact)) for y, _ in made]
    for finer, coarser in zip(errors[1:], errors[:-1], strict=True):
        assert torch.log2(coarser / finer) == pytest.approx(4, abs=0.3)
    for finer, coarser in zip(made[1:], made[:-1], strict=True):
        # the local error of order three falls with the fourth power of the step
        assert torch.log2(coarser[1] / finer[1]) == pytest.approx(4, abs=0.3)


def test_what_is_stiff_is_damped_in_one_step() -> None:
    rates = torch.tensor([1e3, 1e9], dtype=torch.float64)
    y = torch.ones(1, 2, dtype=torch.float64)
    jacobian = torch.diag(-rates)[None]
    made = rosenbrock.step(lambda z: -rates * z, jacobian, y, torch.ones(1, dtype=torch.float64))
    assert made.y.abs().max() < 1e-2
    assert made.y[0, 1].abs() < 1e-7


def covariances(randn: Randn, members: int, d: int) -> torch.Tensor:
    z = randn(members, d, d)
    return z @ z.mT / d


def centred(cov: torch.Tensor) -> Gaussian:
    return Gaussian(torch.zeros_like(cov[..., 0]), cov)


def test_every_member_follows_its_closed_form_and_blows_up_at_its_own_time(randn: Randn) -> None:
    """S(t) = S_0^{1/2} (I - 2tM)^{-1} S_0^{1/2}, M = S_0^{1/2} A_s S_0^{1/2}, for V = I."""
    d, end = 3, 5.0
    a, cov = randn(6, d, d), covariances(randn, 6, d)
    a[3:] -= 4 * torch.eye(d, dtype=a.dtype)  # these stay bounded
    eye = torch.eye(d, dtype=a.dtype)
    attentions = [Softmax(Heads.from_matrices(one, eye)) for one in a]
    root = centred(cov).factor()
    m = root @ ((a + a.mT) / 2) @ root
    pole = 1 / (2 * torch.linalg.eigvalsh(m)[:, -1])
    got = flow_each(attentions, centred(cov), [0, end / 10, end], rtol=1e-7)
    statuses = {outcome.status for outcome in got.outcomes}
    assert statuses == {"blew up", "finished"}
    for member, outcome in enumerate(got.outcomes):
        if 0 < pole[member] < end:
            assert outcome.status == "blew up"
            assert outcome.time == pytest.approx(float(pole[member]), rel=1e-6)
            continue
        assert outcome.status == "finished"
        for t, s in zip(got.times.tolist(), got.cov[:, member], strict=True):
            exact = root[member] @ torch.linalg.inv(eye - 2 * t * m[member]) @ root[member]
            assert torch.linalg.matrix_norm(s - exact) <= 1e-6 * torch.linalg.matrix_norm(exact)


@pytest.mark.parametrize("variant", [Softmax, L2, Sinkhorn, Linear])
def test_a_stack_is_what_flow_gives_one_by_one(variant: type[Attention], randn: Randn) -> None:
    """Two heads, biases, means and scales of their own."""
    d, members = 2, 3
    attentions = [
        variant(
            Heads(
                *(0.4 * randn(2, 3, d) for _ in range(2)),
                0.4 * randn(2, 4, d),
                0.4 * randn(2, d, 4),
                *(0.3 * randn(2, 3) for _ in range(2)),
                0.3 * randn(2, 4),
                0.3 * randn(d),
                scale=0.5 + member / 4,
            )
        )
        for member in range(members)
    ]
    start = Gaussian(0.3 * randn(members, d), covariances(randn, members, d))
    got = flow_each(attentions, start, [0, 0.3, 1.0])
    assert got.status == "finished"
    for member, attention in enumerate(attentions):
        one = flow(
            attention, Gaussian(start.mean[member], start.cov[member]), [0, 0.3, 1.0], settle=None
        )
        assert torch.allclose(got.mean[:, member], one.mean, rtol=1e-6, atol=1e-7)
        assert torch.allclose(got.cov[:, member], one.cov, rtol=1e-6, atol=1e-7)


def test_a_member_does_not_depend_on_those_beside_it(randn: Randn) -> None:
    """Time scales that differ by six orders: a step size for all would show."""
    cov = covariances(randn, 3, 3)
    v = torch.stack([size * torch.eye(3, dtype=cov.dtype) for size in (1.0, 1e3, 1e-3)])
    q = randn(3, 1, 3)
    attentions = [
        Softmax(Heads(*(part[None] for part in (one, -one, values))))
        for one, values in zip(q, v, strict=True)
    ]
    together = flow_each(attentions, centred(cov), [0, 1.0, 10.0], rtol=1e-4)
    for member, attention in enumerate(attentions):
        start = centred(cov[member : member + 1])
        alone = flow_each([attention], start, [0, 1.0, 10.0], rtol=1e-4)
        assert torch.allclose(together.cov[:, member], alone.cov[:, 0], rtol=1e-10, atol=1e-13)
        assert together.outcomes[member] == alone.outcomes[0]


def test_states_come_back_in_their_dtype_and_nothing_asked_is_lost(randn: Randn) -> None:
    attention = Softmax(Heads.from_matrices(-torch.eye(2), torch.eye(2)))
    start = centred(covariances(randn, 2, 2).float())
    got = flow_each([attention] * 2, start, [1, 2, 3, 4], rtol=1e-5)
    assert got.times.tolist() == [1, 2, 3, 4]
    assert got.cov.shape == (4, 2, 2, 2)
    assert got.cov.dtype == torch.float32
    assert (got.cov.diagonal(dim1=-2, dim2=-1).sum(-1).diff(dim=0) < 0).all()


def test_who_cannot_go_on_has_failed_and_says_why(randn: Randn) -> None:
    eye = torch.eye(2, dtype=torch.float64)
    attentions = [Softmax(Heads.from_matrices(-eye, eye)) for _ in range(2)]
    got = flow_each(attentions, centred(covariances(randn, 2, 2)), [0, 1e6], max_steps=3)
    assert got.status == "failed"
    assert "larger max_steps" in got.outcomes[0].reason
    assert 0 < got.stop_time < 1e6
    assert got.times.tolist() == [0, got.stop_time]
    # singular vectors of a multiple of the identity have no derivative
    got = flow_each([Sinkhorn(Heads.from_matrices(eye, eye))], centred(eye[None]), [0, 1.0])
    assert (got.status, got.stop_time) == ("failed", 0.0)
    assert "too small" in got.outcomes[0].reason


def test_a_stack_can_be_stopped_and_keeps_what_it_has(randn: Randn) -> None:
    eye, seen = torch.eye(2, dtype=torch.float64), []

    def watch(t: float) -> bool:
        seen.append(t)
        return t < 1

    attentions = [Softmax(Heads.from_matrices(-size * eye, eye)) for size in (1.0, 50.0)]
    start = centred(covariances(randn, 2, 2))
    got = flow_each(attentions, start, [0, 0.5, 1e6], rtol=1e-5, progress=watch)
    assert got.status == "stopped"
    assert seen == sorted(seen)
    assert min(outcome.time for outcome in got.outcomes) == seen[-1] >= 1
    assert got.times[:2].tolist() == [0, 0.5]


WRONG: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda att, mu: flow_each([att], mu, [0, 1.0]), "must be a list of 2"),
    (lambda att, mu: flow_each(att, mu, [0, 1.0]), "must be a list of 2"),
    (lambda att, mu: flow_each([att, L2(att.heads)], mu, [0, 1.0]), "must be of one variant"),
    (
        lambda att, mu: flow_each(
            [Sinkhorn(att.heads, eps=1.0), Sinkhorn(att.heads, eps=2.0)], mu, [0, 1.0]
        ),
        "must be of one variant",
    ),
    (
        lambda att, mu: flow_each(
            [att, Softmax(Heads(att.heads.query[:, :1], att.heads.key[:, :1], att.heads.value))],
            mu,
            [0, 1.0],
        ),
        "heads of one shape",
    ),
    (lambda att, mu: flow_each([att, att], mu, [1.0, 0]), "times must be finite and increasing"),
    (lambda att, mu: flow_each([att, att], mu, [0, 1.0], rtol=0), "rtol"),
    (lambda att, mu: flow_each([att], Gaussian(mu.mean[0], mu.cov[0]), [0, 1.0]), "members d"),
    (lambda att, mu: flow_each([Sigmoid(att.heads)] * 2, mu, [0, 1.0]), "no closed form"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "words"), WRONG)
def test_what_does_not_fit_is_refused(
    call: Callable[[Any, Any], object], words: str, randn: Randn
) -> None:
    attention = Softmax(Heads.from_matrices(randn(2, 2), randn(2, 2)))
    with pytest.raises((ValueError, NoClosedForm), match=words):
        call(attention, centred(covariances(randn, 2, 2)))


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_gaussian_is_refused() -> None:
    with pytest.raises(TypeError, match="must be of class"):
        flow_each([], torch.eye(2), [0, 1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1e-7, 1.0, 1e6])
def test_the_closed_form_of_l2_keeps_its_digits(size: float, randn: Randn) -> None:
    """B = V (I + 2SG)^{-1} 2S K^T Q, for covariances of all sizes."""
    q, k, v, cov = randn(1, 2, 3), randn(1, 2, 3), randn(1, 3, 3), covariances(randn, 1, 3)[0]
    made = L2(Heads(q, k, v, scale=1.0)).affine(centred(size * cov)).matrix
    inner = torch.eye(2, dtype=q.dtype) + 2 * size * k[0] @ cov @ k[0].mT
    exact = v[0] @ (2 * size * cov @ k[0].mT) @ torch.linalg.inv(inner) @ q[0]
    assert torch.linalg.matrix_norm(made - exact) <= 1e-12 * torch.linalg.matrix_norm(exact)


def test_layers_of_l2_have_gradients_where_singular_values_are_equal() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    weights = eye.clone().requires_grad_()
    heads = Heads(eye[None], weights[None], eye[None], scale=1.0)
    residual(L2(heads), centred(eye), 0.1, 2).final.cov.trace().backward()
    assert weights.grad is not None
    assert weights.grad.isfinite().all()
    assert weights.grad.abs().max() > 0
