"""Bad input at every public door: a ValueError or TypeError that says what was expected, what came
and what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscope import (
    L2,
    Affine,
    Exponential,
    Gaussian,
    Heads,
    Linear,
    Particles,
    Sigmoid,
    Softmax,
    bounds,
    bures,
    conditional_wasserstein,
    jacobian,
    spectral_norm,
    variants,
    wasserstein,
)
from attnscope.attacks import worst_case
from attnscope.bounds import large_radius_limit
from attnscope.bounds.constructions import _Head
from attnscope.flows import anisotropy, energy, rank, spectral_gap_rank
from attnscope.validation import check_same_kind, parsed

pytestmark = pytest.mark.usefixtures("unchecked")

DOUBLE = torch.float64
EYE = torch.eye(2, dtype=DOUBLE)
X = torch.arange(6, dtype=DOUBLE).reshape(3, 2)
HEADS = Heads.from_matrices(EYE, EYE)
ONE = EYE[None]
MU = Particles(X)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=DOUBLE)


def spoiled(value: float) -> torch.Tensor:
    x = X.clone()
    x[1, 1] = value
    return x


def positional(n: int = 3) -> Heads:
    return Heads(ONE, ONE, ONE, position_bias=zeros(1, n, n))


Case = tuple[Callable[[], Any], type[Exception], str]

CASES: dict[str, Case] = {
    # Particles
    "a list of points": (
        lambda: Particles([[0.0]]),
        TypeError,
        "x must be a torch.Tensor of shape (... n d), got list [[0.0]]. Convert it",
    ),
    "integer points": (
        lambda: Particles(X.long()),
        TypeError,
        "x must hold real floating-point numbers, got a tensor of shape (3, 2)",
    ),
    "complex points": (
        lambda: Particles(X + 0j),
        TypeError,
        "dtype torch.complex128. Convert it first, for example with .to(torch.float64)",
    ),
    "points on one axis": (
        lambda: Particles(X[0]),
        ValueError,
        "x must have shape (... n d), got a tensor of shape (2,)",
    ),
    "no points": (
        lambda: Particles(X[:0]),
        ValueError,
        "with no empty axis, got a tensor of shape (0, 2)",
    ),
    "a NaN": (
        lambda: Particles(spoiled(math.nan)),
        ValueError,
        "x must be finite, got 1 NaN or infinite entries out of 6. Remove or repair",
    ),
    "an infinity": (
        lambda: Particles(spoiled(math.inf)),
        ValueError,
        "x must be finite, got 1 NaN or infinite",
    ),
    "too few weights": (
        lambda: Particles(X, zeros(2)),
        ValueError,
        "weights must have shape (3,) (one per particle), got a tensor of shape (2,)",
    ),
    "one weight for all": (
        lambda: Particles(X, zeros(1)),
        ValueError,
        "weights must have shape (3,) (one per particle)",
    ),
    "weights for no stack": (
        lambda: Particles(X.expand(2, 3, 2), zeros(3)),
        ValueError,
        "weights must have shape (2, 3)",
    ),
    "negative weights": (
        lambda: Particles(X, torch.tensor([0.6, 0.6, -0.2], dtype=DOUBLE)),
        ValueError,
        "weights must not be negative, got a smallest weight of -0.2",
    ),
    "weights that sum to two": (
        lambda: Particles(X, zeros(3) + 2 / 3),
        ValueError,
        "off by 1. Pass weights / weights.sum() instead",
    ),
    "NaN weights": (
        lambda: Particles(X, zeros(3) / 0),
        ValueError,
        "weights must be finite, got 3 NaN",
    ),
    "integer weights": (
        lambda: Particles(X, torch.tensor([1, 0, 0])),
        TypeError,
        "weights must hold real floating-point numbers",
    ),
    "single weights": (
        lambda: Particles(X, torch.ones(3) / 3),
        TypeError,
        "weights must have the dtype of x, torch.float64, got torch.float32",
    ),
    "positions past one": (
        lambda: Particles(X, positions=zeros(3) + 2),
        ValueError,
        "positions must lie in [0, 1], got values from 2 to 2",
    ),
    "too many positions": (
        lambda: Particles(X, positions=zeros(4)),
        ValueError,
        "positions must have shape (3,) (one per particle)",
    ),
    "positions elsewhere": (
        lambda: check_same_kind("positions", torch.zeros(3, dtype=DOUBLE, device="meta"), "x", X),
        ValueError,
        "positions must be on the device of x, cpu, got meta. Move one of them",
    ),
    # Gaussian
    "a number as mean": (
        lambda: Gaussian(0.0, EYE),
        TypeError,
        "mean must be a torch.Tensor of shape (... d), got float 0.0",
    ),
    "no covariance": (
        lambda: Gaussian(zeros(2), None),
        TypeError,
        "cov must be a torch.Tensor of shape (... d d), got NoneType None",
    ),
    "a clash of dimensions": (
        lambda: Gaussian(zeros(3), EYE),
        ValueError,
        "cov must have shape (3, 3) (one d x d matrix per mean), got a tensor of",
    ),
    "one covariance for a stack": (
        lambda: Gaussian(zeros(4, 2), EYE),
        ValueError,
        "cov must have shape (4, 2, 2)",
    ),
    "a skewed covariance": (
        lambda: Gaussian(zeros(2), torch.tensor([[1, 0.5], [0, 1]], dtype=DOUBLE)),
        ValueError,
        (
            "cov must be symmetric, got entries that differ from their mirror by up to 0.5. Pass"
            " (cov + cov.mT) / 2"
        ),
    ),
    "an indefinite covariance": (
        lambda: Gaussian(zeros(2), torch.tensor([[1, 2], [2, 1]], dtype=DOUBLE)),
        ValueError,
        "cov must be positive semi-definite, got an eigenvalue -1. A covariance is L @ L.mT",
    ),
    "a small one among large": (
        lambda: Gaussian(zeros(2, 1), torch.tensor([[[1e12]], [[-1.0]]], dtype=DOUBLE)),
        ValueError,
        "cov must be positive semi-definite, got an eigenvalue -1",
    ),
    "a complex covariance": (
        lambda: Gaussian(zeros(2), EYE + 0j),
        TypeError,
        "cov must hold real floating-point numbers",
    ),
    "a NaN covariance": (
        lambda: Gaussian(zeros(2), EYE / 0),
        ValueError,
        "cov must be finite, got 4 NaN or infinite entries out of 4",
    ),
    "a single covariance": (
        lambda: Gaussian(zeros(2), EYE.float()),
        TypeError,
        "cov must have the dtype of mean, torch.float64",
    ),
    "no sample": (
        lambda: Gaussian(zeros(2), EYE).sample(0, 1),
        ValueError,
        "n must be a whole number of at least 1, got 0",
    ),
    "half a sample": (
        lambda: Gaussian(zeros(2), EYE).sample(1.5, 1),
        ValueError,
        "n must be a whole number of at least 1, got 1.5",
    ),
    "no seed": (
        lambda: Gaussian(zeros(2), EYE).sample(2, None),
        TypeError,
        "generator must be a torch.Generator or an integer seed, got NoneType",
    ),
    "order zero": (
        lambda: Gaussian(zeros(2), EYE).quadrature(0),
        ValueError,
        "order must be a whole number from 1 to 300, got 0",
    ),
    "a grid too fine": (
        lambda: Gaussian(zeros(9), torch.eye(9, dtype=torch.float64)).quadrature(10),
        ValueError,
        (
            "needs 10**9 particles, more than 10,000,000. Use a smaller order, or"
            " gaussian.sample(n, generator=seed)"
        ),
    ),
    # Heads
    "no key": (
        lambda: Heads(ONE, None, ONE),
        TypeError,
        "key must be a torch.Tensor of shape (h k d), got NoneType None",
    ),
    "one head without its axis": (
        lambda: Heads(EYE, EYE, EYE),
        ValueError,
        "query must have shape (h k d), got a tensor of shape (2, 2)",
    ),
    "keys of another size": (
        lambda: Heads(ONE, zeros(1, 3, 2), ONE),
        ValueError,
        "key must have shape (1, 2, 2) ((h k d) to go with query (1, 2, 2))",
    ),
    "one key for two heads": (
        lambda: Heads(zeros(2, 2, 2), ONE, zeros(2, 2, 2)),
        ValueError,
        "key must have shape (2, 2, 2)",
    ),
    "narrow values alone": (
        lambda: Heads(ONE, ONE, zeros(1, 1, 2)),
        ValueError,
        "without output the value matrices must be (h, 2, 2), got (1, 1, 2). Pass output",
    ),
    "an output transposed": (
        lambda: Heads(ONE, ONE, zeros(1, 3, 2), zeros(1, 3, 2)),
        ValueError,
        "output must have shape (1, 2, 3)",
    ),
    "a flat query bias": (
        lambda: Heads(ONE, ONE, ONE, query_bias=zeros(2)),
        ValueError,
        "query_bias must have shape (h k), got a tensor of",
    ),
    "a bias per head at the output": (
        lambda: Heads(ONE, ONE, ONE, output_bias=zeros(1)),
        ValueError,
        "output_bias must have shape (2,)",
    ),
    "single values": (
        lambda: Heads(ONE, ONE, ONE.float()),
        TypeError,
        "value must have the dtype of query, torch.float64, got torch.float32",
    ),
    "a negative scale": (
        lambda: Heads(ONE, ONE, ONE, scale=-1.0),
        ValueError,
        "scale must be a finite number above 0, got float -1.0",
    ),
    "odd rotary heads": (
        lambda: Heads(*[zeros(1, 3, 3)] * 3, rotary=zeros(1)),
        ValueError,
        "rotary needs an even head size k, got k = 3",
    ),
    "rotary angles per coordinate": (
        lambda: Heads(ONE, ONE, ONE, rotary=zeros(2)),
        ValueError,
        "rotary must have shape (1,)",
    ),
    "a list as position bias": (
        lambda: Heads(ONE, ONE, ONE, position_bias=[0]),
        TypeError,
        "position_bias must be a torch.Tensor of shape (h N N)",
    ),
    "an oblong position bias": (
        lambda: Heads(ONE, ONE, ONE, position_bias=zeros(1, 3, 4)),
        ValueError,
        "position_bias must have shape (1, 4, 4)",
    ),
    "an oblong matrix": (
        lambda: Heads.from_matrices(zeros(2, 3), zeros(2, 3)),
        ValueError,
        "A must have shape (2, 2) (square), got a tensor of",
    ),
    "matrices of two sizes": (
        lambda: Heads.from_matrices(EYE, zeros(3, 3)),
        ValueError,
        "V must have shape (2, 2) (the shape of A)",
    ),
    "a stack of heads": (
        lambda: Heads.from_matrices(zeros(2, 2, 2, 2), zeros(2, 2, 2, 2)),
        ValueError,
        "A must be (d, d), or (h, d, d) for h heads",
    ),
    "rotary queries without numbers": (
        lambda: Heads(ONE, ONE, ONE, rotary=zeros(1)).queries(X),
        ValueError,
        "rotary heads need token numbers: pass at=torch.arange(n)",
    ),
    # Attention
    "matrices for heads": (
        lambda: Softmax(EYE),
        TypeError,
        "Softmax needs a Heads, got a tensor of shape (2, 2)",
    ),
    "a field on a Gaussian that overflows": (
        lambda: Softmax(Heads(1e200 * ONE, 1e200 * ONE, ONE)).affine(Gaussian(zeros(2), EYE)),
        ValueError,
        "the field of softmax attention on this Gaussian overflows torch.float64",
    ),
    "scores that overflow in the limit": (
        lambda: large_radius_limit(Softmax(HEADS), Particles(1e200 * X)),
        ValueError,
        "the scores of these tokens overflow float64",
    ),
    "a number for causal": (
        lambda: Softmax(HEADS, causal=float("nan")),  # type: ignore[arg-type]
        TypeError,
        "causal must be of class bool, got float nan",
    ),
    "a cloud to affine": (
        lambda: Softmax(HEADS).affine(MU),
        TypeError,
        "affine needs a Gaussian, got Particles",
    ),
    "a Gaussian of another dimension": (
        lambda: Softmax(HEADS).affine(Gaussian(zeros(1), zeros(1, 1))),
        ValueError,
        "gaussian.mean must have shape (2,)",
    ),
    "a Gaussian to push": (
        lambda: Softmax(HEADS).push(Gaussian(zeros(2), EYE)),
        TypeError,
        "push needs a Particles, got Gaussian",
    ),
    "an affine field of another dimension": (
        lambda: Affine(EYE, zeros(2))(zeros(4, 1)),
        ValueError,
        "x must have shape (4, 2) (the stack and dimension of the field)",
    ),
    "an affine field on a stack": (
        lambda: Affine(EYE, zeros(2))(zeros(5, 4, 2)),
        ValueError,
        "x must have shape (4, 2)",
    ),
    "an infinite bias": (
        lambda: Sigmoid(HEADS, bias=math.inf),
        ValueError,
        "bias must be a finite number, got float inf",
    ),
    "half a token": (
        lambda: Sigmoid(HEADS, tokens=0.5),
        ValueError,
        "tokens must be a whole number of at least 1, or None for the mean form, got",
    ),
    # Transport
    "a cloud and a Gaussian": (
        lambda: wasserstein(MU, Gaussian(zeros(2), EYE)),
        TypeError,
        "expected two Particles or two Gaussians, got Particles",
    ),
    "tensors to compare": (
        lambda: wasserstein(X, X),
        TypeError,
        "Sample the Gaussian to compare it with a cloud",
    ),
    "clouds of two dimensions": (
        lambda: wasserstein(MU, Particles(X[:, :1])),
        ValueError,
        "nu must have shape (3, 2) (the dimension of mu)",
    ),
    "clouds of two dtypes": (
        lambda: wasserstein(MU, Particles(X.float())),
        TypeError,
        "nu must have the dtype of mu",
    ),
    "stacks of clouds": (
        lambda: wasserstein(Particles(X[None]), Particles(X[None])),
        ValueError,
        "mu must have shape (n d), got a tensor of shape (1, 3,",
    ),
    "p below one": (
        lambda: wasserstein(MU, MU, 0.5),
        ValueError,
        "p must be a number with 1 <= p < infinity, got float 0.5",
    ),
    "p infinite": (
        lambda: wasserstein(MU, MU, math.inf),
        ValueError,
        "p must be a number with 1 <= p < infinity, got float inf",
    ),
    "Gaussians and p = 1": (
        lambda: wasserstein(Gaussian(zeros(2), EYE), Gaussian(zeros(2), EYE), 1),
        ValueError,
        "between Gaussians only p = 2 has a closed form, got p = 1. Sample them",
    ),
    "Gaussians as sequences": (
        lambda: conditional_wasserstein(Gaussian(zeros(2), EYE), Gaussian(zeros(2), EYE)),
        TypeError,
        "compares sequences of tokens: pass two Particles",
    ),
    "covariances of two sizes": (
        lambda: bures(EYE, zeros(3, 3)),
        ValueError,
        "tau must have shape (2, 2) (the shape of sigma)",
    ),
    "a vector of variances": (
        lambda: bures(zeros(2), EYE),
        ValueError,
        "sigma must have shape (d d), got a tensor of shape (2,)",
    ),
    "no covariance matrix": (
        lambda: bures(-EYE, EYE),
        ValueError,
        "cov must be positive semi-definite, got an eigenvalue -1",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_is_refused_in_a_sentence(case: Case) -> None:
    call, kind, sentence = case
    with pytest.raises(kind, match=re.escape(sentence)):
        call()


BAD_CALLS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a Gaussian as measure": (
        lambda att: att(X, Gaussian(zeros(2), EYE)),
        TypeError,
        "attention(x, mu) needs mu to be a Particles, got Gaussian",
    ),
    "a tensor as measure": (
        lambda att: att(X, X),
        TypeError,
        "attention(x, mu) needs mu to be a Particles, got a tensor of shape (3, 2)",
    ),
    "a list of queries": (
        lambda att: att([[0.0, 0.0]], MU),
        TypeError,
        "x must be a torch.Tensor of shape (... m d), got list",
    ),
    "one query without its axis": (
        lambda att: att(X[0], MU),
        ValueError,
        "x must have shape (... m d), got a tensor of shape (2,)",
    ),
    "a NaN query": (
        lambda att: att(spoiled(math.nan), MU),
        ValueError,
        "x must be finite, got 1 NaN",
    ),
    "integer queries": (
        lambda att: att(X.long(), MU),
        TypeError,
        "x must hold real floating-point numbers",
    ),
    "single queries": (
        lambda att: att(X.float(), MU),
        TypeError,
        "x must have the dtype of mu.x, torch.float64, got torch.float32",
    ),
    "single everything": (
        lambda att: att(X.float(), Particles(X.float())),
        TypeError,
        "mu.x must have the dtype of the heads, torch.float64",
    ),
    "queries of another dimension": (
        lambda att: att(X[:, :1], MU),
        ValueError,
        "x must have shape (3, 2) (the stack and dimension of mu)",
    ),
    "a measure of another dimension": (
        lambda att: att(X, Particles(X[:, :1])),
        ValueError,
        "mu.x must have shape (3, 2) (the dimension of the heads)",
    ),
    "a stack of queries": (
        lambda att: att(X.expand(4, 3, 2), MU),
        ValueError,
        "x must have shape (3, 2) (the stack and dimension of mu)",
    ),
    "a stack of measures": (
        lambda att: att(X, Particles(X.repeat(4, 1, 1))),
        ValueError,
        "x must have shape (4, 3, 2)",
    ),
    "a stack of one": (
        lambda att: att(X[None], Particles(X.repeat(4, 1, 1))),
        ValueError,
        "x must have shape (4, 3, 2)",
    ),
}


@pytest.mark.parametrize("name", variants())
@pytest.mark.parametrize("case", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_every_variant_refuses_it(
    name: str, case: tuple[Callable[[Any], Any], type[Exception], str]
) -> None:
    call, kind, sentence = case
    with pytest.raises(kind, match=re.escape(sentence)):
        call(variants()[name](HEADS))


MASKED = [Softmax, L2, Sigmoid, Exponential, Linear]


@pytest.mark.parametrize("variant", MASKED)
@pytest.mark.parametrize(
    ("positions", "sentence"),
    [
        (
            None,
            (
                "depends on where the 2 queries stand among the 3 particles: pass positions, one"
                " number in [0, 1] per query"
            ),
        ),
        (zeros(3), "positions must have shape (2,) (one per query)"),
        (zeros(2) + 1.5, "positions must lie in [0, 1], got values from 1.5 to 1.5"),
    ],
)
def test_masked_queries_without_a_place_are_refused(
    variant: Any, positions: torch.Tensor | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        variant(HEADS, causal=True)(X[:2], MU, positions=positions)


@pytest.mark.parametrize("variant", [Softmax, L2])
def test_a_query_that_reads_no_mass_is_refused(variant: Any) -> None:
    late = Particles(X, torch.tensor([0, 0.5, 0.5], dtype=DOUBLE))
    with pytest.raises(
        ValueError,
        match=re.escape(
            "reads no mass: the first particle with mass stands at 0.666667. Move the query"
        ),
    ):
        variant(HEADS, causal=True)(X, late)


@pytest.mark.parametrize("variant", MASKED)
def test_a_sequence_longer_than_the_position_bias_is_refused(variant: Any) -> None:
    with pytest.raises(ValueError, match="serves sequences of at most 2 tokens, got 3"):
        variant(positional(2))(X, MU)


@pytest.mark.parametrize("variant", MASKED)
def test_positional_heads_refuse_other_places(variant: Any) -> None:
    attention = variant(positional())
    with pytest.raises(
        ValueError, match="read tokens in their order: build the Particles without positions"
    ):
        attention(X, Particles(X, positions=zeros(3)))
    with pytest.raises(ValueError, match="read token i of n at position i/n"):
        attention(X[:1], MU, positions=zeros(1))
    uneven = torch.tensor([[1 / 3], [1.0]], dtype=DOUBLE)
    with pytest.raises(ValueError, match="the same in every sequence of a stack"):
        attention(X.repeat(2, 1, 1)[:, :1], Particles(X.repeat(2, 1, 1)), positions=uneven)


@pytest.mark.parametrize("x", [torch.eye(2).double().to_sparse(), torch.empty(2, 2, device="meta")])
def test_tensors_without_numbers_one_by_one(x: torch.Tensor, unchecked: None) -> None:
    with pytest.raises(TypeError, match="dense tensor with data"):
        Particles(x)
    attention = Softmax(Heads.from_matrices(torch.eye(2).double(), torch.eye(2).double()))
    with pytest.raises(TypeError, match="eps must be a number"):
        bounds.sensitivity(attention, torch.eye(2).double(), x)


def test_json_that_is_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed("[" * 200_000)


def test_wrong_kinds_for_options_that_may_be_left_out() -> None:
    op = jacobian(Softmax(HEADS), MU)
    with pytest.raises(TypeError, match="near must be of class Near, got float"):
        spectral_norm(op, near=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="failure_probability must be a number strictly between"):
        spectral_norm(op, failure_probability=torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="space must be of class Sphere or Ellipsoid, got"):
        energy(Softmax(HEADS), MU, 1j)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer seed, got float"):
        worst_case(Softmax(HEADS), 2, 1.0, seed=0.5)  # type: ignore[arg-type]


def test_covariances_are_square() -> None:
    for quantity in (rank, spectral_gap_rank, anisotropy):
        with pytest.raises(ValueError, match=r"as many columns as rows"):
            quantity(zeros(2, 3))


def test_products_that_overflow_make_no_matrix() -> None:
    op = jacobian(Softmax(HEADS), Particles(1e200 * X))
    with pytest.raises(ValueError, match=r"overflow torch.float64"):
        op.to_dense()


def test_gaussians_of_half_precision() -> None:
    assert bures(EYE.half(), EYE.half()) == 0


def test_oblique_directions_are_found_for_scores_of_any_size() -> None:
    a = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    found = [
        _Head(Softmax(Heads.from_matrices(size * a, EYE)), causal=False).most_oblique()
        for size in (1, 1e308)
    ]
    assert torch.allclose(*found)
