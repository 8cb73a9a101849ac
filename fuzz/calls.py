"""Hostile calls of the public functions: whatever is exported is called from its first line.

A call may end in a result without NaN or in one of `ALLOWED`; everything else is a failure.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import attnscope as asc
from fuzz import hostile
from fuzz.children import NAN_FOUND

ALLOWED = (TypeError, ValueError, OverflowError, ImportError)
ROOMS = (
    "attacks",
    "attention",
    "bounds",
    "data",
    "flows",
    "measures",
    "norms",
    "operators",
    "transport",
)
APART = {
    "load", "measure", "register_attention", "theorem", "images", "read_ids", "bound_of",
    "tied_reads", "followed",
}  # fmt: skip
"""They read files, for which there are cases of their own, change the process, or are steps of a
theorem that only theorems and layers take.
"""
SCALES = (
    1.0,
    1.0,
    1.0,
    1e-3,
    10.0,
    1e3,
    1e8,
    1e38,
    1e100,
    1e155,
    1e200,
    1e308,
    1e-30,
    1e-160,
    1e-200,
    5e-324,
    0.0,
)
Call = Callable[..., Any]


def warm() -> None:
    """Import all rooms, and let the slow imports inside them happen once."""
    for room in ROOMS:
        importlib.import_module(f"attnscope.{room}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ot  # noqa: F401
        import torch._decomp.decompositions_for_jvp

        rng = Random(0)
        mu = _particles(rng, 1.0)
        attention = asc.Softmax(
            asc.Heads.from_matrices(torch.eye(2).double(), torch.eye(2).double())
        )
        asc.spectral_norm(asc.jacobian(attention, mu))
        asc.flow(attention, mu, [0.0, 0.1])


def public() -> dict[str, Call]:
    """Every public function and class by its name, and the methods of attentions and measures."""
    found: dict[str, Call] = {}
    for room in ("", *ROOMS):
        module = importlib.import_module(f"attnscope.{room}".rstrip("."))
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if callable(thing) and name not in APART and not _is_record(thing):
                found.setdefault(name, thing)
    for name in METHODS:
        found[name] = METHODS[name]
    return dict(sorted(found.items()))


METHODS: dict[str, Call] = {
    "Attention.__call__": lambda attention, x, mu: attention(x, mu),
    "Attention.push": lambda attention, mu: attention.push(mu),
    "Attention.affine": lambda attention, gaussian: attention.affine(gaussian),
    "Heads.from_matrices": lambda A, V: asc.Heads.from_matrices(A, V),  # noqa: N803
    "Gaussian.sample": lambda gaussian, n, generator: gaussian.sample(n, generator),
    "Gaussian.quadrature": lambda gaussian, order: gaussian.quadrature(order),
    "LinearOperator.to_dense": lambda op: op.to_dense(),
    "Particles.cov": lambda mu: mu.cov(),
    "Particles.to": lambda mu, target: mu.to(target),
}


def call(rng: Random) -> tuple[str, str, Callable[[], None]]:
    """(name, how it is called, the task): mostly good arguments, of sizes from 0 to 1e308."""
    name = rng.choice(list(public()))
    inner = rng.getrandbits(64)
    scales = [rng.choice(SCALES) for _ in range(2)]
    title = f"{name}(...)  # tokens of size {scales[0]:g}, matrices of size {scales[1]:g}"

    def task() -> None:
        source = Random(inner)
        function = public()[name]
        try:
            given = _arguments(function, source, *scales, spare=name in METHODS)
        except ALLOWED as refusal:
            _check_refusal(refusal)
            return
        shown = ", ".join(f"{key}={_brief(value)}" for key, value in given.items())
        print(f"{name}({shown})", file=sys.stderr)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = function(**given)
            except ALLOWED as refusal:
                _check_refusal(refusal)
                return
        if any(_is_nan(number) for number in _numbers(result)):
            print(f"the result holds NaN: {_brief(result)}", file=sys.stderr)
            sys.exit(NAN_FOUND)

    return name, title, task


def _check_refusal(refusal: BaseException) -> None:
    print(f"{type(refusal).__name__}: {refusal}", file=sys.stderr)
    if not str(refusal).strip():
        raise AssertionError("an error without a sentence") from refusal


def _is_record(thing: object) -> bool:
    """Errors, and results that only the library makes: nothing there checks what it is given."""
    if not isinstance(thing, type):
        return False
    unchecked = dataclasses.is_dataclass(thing) and not hasattr(thing, "__post_init__")
    return unchecked or issubclass(thing, BaseException | tuple)


def _arguments(
    function: Call, rng: Random, size: float, weight: float, spare: bool
) -> dict[str, Any]:
    """Arguments for a call; `spare` the first of them, the object of a method."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return {}
    stage = _Stage(rng, size, weight)
    needed = [
        each
        for each in parameters
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and (each.default is each.empty or rng.random() < 0.25)
    ]
    given = {each.name: stage.good(each.name, each.default) for each in needed}
    if needed[spare:] and rng.random() < 0.35:
        given[rng.choice(needed[spare:]).name] = _hostile(rng)
    return given


class _Stage:
    """Good arguments by their names; those of one call fit together."""

    def __init__(self, rng: Random, size: float, weight: float) -> None:
        self.rng, self.d, self.n = rng, rng.choice((1, 2, 3)), rng.choice((1, 2, 3, 5))
        self.mu = _particles(rng, size, self.n, self.d)
        self.nu = _particles(rng, size, rng.choice((1, 2, 3)), self.d)
        self._weight = weight

    def good(self, name: str, default: Any) -> Any:
        maker = getattr(self, f"_{name.lower()}", None)
        if maker is not None:
            return maker()
        return default if default is not inspect.Parameter.empty else _hostile(self.rng)

    def _matrix(self) -> torch.Tensor:
        return _normal(self.rng, self.d, self.d) * self._weight

    _a = _v = _sigma_root = _matrix

    def _heads(self) -> asc.Heads:
        return asc.Heads.from_matrices(self._matrix(), self._matrix())

    def _attention(self) -> asc.Attention:
        variant = self.rng.choice(list(asc.variants().values()))
        try:
            return variant(self._heads(), causal=self.rng.random() < 0.3)
        except ValueError:
            return variant(self._heads())

    _att = _attention

    def _gaussian(self) -> asc.Gaussian:
        root = _normal(self.rng, self.d, self.d)
        return asc.Gaussian(_normal(self.rng, self.d), root @ root.mT)

    def _cov(self) -> torch.Tensor:
        root = _normal(self.rng, self.d, self.d) * self._weight
        return root @ root.mT

    _sigma = _tau = _cov

    def _op(self) -> asc.LinearOperator:
        return asc.jacobian(self._attention(), self.mu)

    def _mu(self) -> asc.Particles:
        return self.mu

    _measure = _mu

    def _nu(self) -> asc.Particles:
        return self.nu

    def _x(self) -> torch.Tensor:
        return self.mu.x

    _points = _point = _x

    def _mean(self) -> torch.Tensor:
        return _normal(self.rng, self.d)

    def _weights(self) -> torch.Tensor:
        return self.mu.weights

    def _n(self) -> int:
        return self.rng.choice((1, 2, 4, 100, 10**6))

    _order = _k = _depth = _n

    def _starts(self) -> int:
        return 2

    _steps = _iterations = _starts

    def _radius(self) -> float:
        return self.rng.choice((0.0, 1.0, 0.1, *SCALES))

    _eps = _step = _time = _t = _tol = _gap = _residual = _rtol = _atol = _p = _radius

    def _times(self) -> list[float]:
        return self.rng.choice(([0.0, 0.1], [0.0, 1.0, 2.0], [0.0, 1e300], [1.0, 0.0], [0.0]))

    def _failure_probability(self) -> float | None:
        return self.rng.choice((None, 1e-6, 0.5, 1.0, 0.0, 1e-300))

    def _seed(self) -> int:
        return self.rng.choice((0, 1, 2**32, 2**64, -1))

    _generator = _seed

    def _source(self) -> str:
        return self.rng.choice(("alice", *hostile.NAMES))

    def _space(self) -> Any:
        return self.rng.choice((None, asc.Sphere()))


def _normal(rng: Random, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _particles(rng: Random, size: float, n: int = 3, d: int = 2) -> asc.Particles:
    return asc.Particles(_normal(rng, n, d) * size)


def _hostile(rng: Random) -> Any:
    values = (
        None, True, -1, 0, 1, 2, 10**12, 10**400, -0.5, 0.5, 1e308, 5e-324, math.nan, math.inf,
        -math.inf, "", "x", "\udcff", b"x", [], [1], (), {}, object(), int, 1j, np.float64("nan"),
        np.zeros((2, 2)), torch.zeros(0), torch.zeros(2, 0, dtype=torch.float64), torch.eye(2),
        torch.full((2, 2), math.nan), torch.full((2, 2), math.inf), torch.zeros(2, 2).long(),
        torch.eye(2).to_sparse(), torch.eye(2, dtype=torch.float16), torch.tensor(1.0),
        torch.eye(2, dtype=torch.complex64), torch.empty(2, 2, device="meta"), Path("x"), range(3),
        torch.eye(2, dtype=torch.bfloat16), torch.randn(4, 3, 2, dtype=torch.float64),
        torch.eye(2).double().requires_grad_(), lambda *given: None, ..., float("1e-320"),
    )  # fmt: skip
    return rng.choice(values)


def _numbers(result: Any, depth: int = 0) -> Iterator[Any]:
    """Every number in a result."""
    if depth > 6:
        return
    if isinstance(result, torch.Tensor | np.ndarray | float | complex):
        yield result
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _numbers(value, depth + 1)
    elif isinstance(result, list | tuple | set):
        for value in result:
            yield from _numbers(value, depth + 1)
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for field in dataclasses.fields(result):
            yield from _numbers(getattr(result, field.name, None), depth + 1)


def _is_nan(number: Any) -> bool:
    if isinstance(number, torch.Tensor):
        if (
            number.is_meta
            or number.is_sparse
            or not (number.is_floating_point() or number.is_complex())
        ):
            return False
        return bool(number.detach().isnan().any())
    array = np.asarray(number)
    return array.dtype.kind in "fc" and bool(np.isnan(array).any())


def _brief(value: Any) -> str:
    """A value in a few words."""
    try:
        shown = repr(
            value.tolist() if isinstance(value, torch.Tensor) and not value.is_meta else value
        )
    except Exception:
        shown = type(value).__name__
    return shown[:400]
