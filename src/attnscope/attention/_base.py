r"""Attention as a map between probability measures: the contract that every variant keeps.

$\Gamma_\mu(x) = b_O + \sum_h W_h \sum_j c^h_{j}(x, \mu)\,(V_h y_j + b_{V,h})$ for $\mu = \sum_j w_j
\delta_{y_j}$: a variant is its `coupling` $c$, how a query reads the measure. The query and the
measure are separate arguments.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from attnscope.attention._heads import Heads
from attnscope.attention._parts import Affine, BiasOf, Climbed, Kernel, NoClosedForm, Overflow
from attnscope.attention._rows import by_rows
from attnscope.measures import Gaussian, Particles
from attnscope.validation import (
    check_kind,
    check_same_kind,
    check_shape,
    check_tensor,
    described,
)

Variant = TypeVar("Variant", bound="Attention")


@dataclass(frozen=True, eq=False)
class Attention(ABC):
    """A variant of attention: `attention(x, mu)` is the field of mu at x, `attention.push(mu)` the
    measure after one layer.

    With `causal=True` a query at place s reads the particles at places tau <= s only: ties see each
    other.
    """

    heads: Heads
    causal: bool = field(default=False, kw_only=True)

    name: ClassVar[str]
    normalised: ClassVar[bool]
    lipschitz: ClassVar[str]
    """Whether the map is globally Lipschitz, in a word or a condition."""
    distance: ClassVar[bool] = False
    """Whether scores are minus squared distances, -scale |q - k|^2, and not scale <q, k>."""
    reference: ClassVar[str]
    no_closed_form: ClassVar[str] = "its field is not affine on a Gaussian"
    bias_of: ClassVar[BiasOf] = "measure"
    """What the key bias of `kernel` depends on: masses alone, each key alone (`bias_slope` is its
    gradient), or the whole measure. The first two promise that queries and keys are those of the
    heads up to a common shift: the Jacobian is then analytic.
    """
    interpolates: ClassVar[bool] = False
    """Whether flows may interpolate the field in the query: it is smooth there, and one query costs
    one pass over the particles.
    """
    lipschitz_if_tied: ClassVar[bool] = False
    """Whether Q = K and V = UQ make the map Lipschitz on the whole space for each n."""

    def __post_init__(self) -> None:
        if not isinstance(self.heads, Heads):
            raise TypeError(
                f"{type(self).__name__} needs a Heads, got {described(self.heads)}. Build one with"
                " Heads.from_matrices(A, V)."
            )
        check_kind("causal", self.causal, bool)

    # What a variant writes: its coupling, and whatever else it has.

    @abstractmethod
    def coupling(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack h m n"]:
        """How the queries x read mu: one row per query, masses included. `positions` say where the
        queries stand.
        """

    def kernel(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Kernel | None:
        """A coupling that is an exponential, divided by its row sums where `normalised`. None:
        it is not.
        """
        return None

    def bias_slope(self, k: Float[Tensor, "*stack h n k"]) -> Float[Tensor, "*stack h n k"] | None:
        """The gradient of the key bias in each key, at the keys of `kernel`. None: it does not
        move with them.
        """
        return None

    def energy(self, mu: Particles) -> Climbed | None:
        """The energy that the flow of particles climbs, for one head. None: none is known."""
        return None

    def energy_on_gaussian(self, mu: Gaussian) -> Float64[Tensor, ""] | None:
        """The energy that the flow of a centred Gaussian climbs, for one head. None: none is
        known.
        """
        return None

    def on_gaussian(self, mu: Gaussian) -> Affine:
        """The field on a Gaussian when it is affine. Optional: the default says that there is no
        closed form.
        """
        raise NoClosedForm(
            f"{self.name} attention has no closed form on a Gaussian: {self.no_closed_form}. Use"
            " particles instead: gaussian.quadrature(order) or gaussian.sample(n, generator=seed)."
        )

    def evaluate(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None,
    ) -> Float[Tensor, "*stack m d"]:
        """The field at x in little memory. The default evaluates the coupling a few rows at a
        time.
        """
        return by_rows(
            lambda x, positions: self.dense(x, mu, positions),
            x,
            positions,
            self.heads.count * mu.weights.numel(),
        )

    # What users call.

    def __call__(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack m d"]:
        r"""$\Gamma_\mu(x)$. `positions` say where the queries of a causal attention stand (default:
        those of mu).
        """
        found = self.evaluate(x, mu, self.check(x, mu, positions))
        if not torch.stack(torch.aminmax(found.detach())).isfinite().all():
            largest = max(float(part.detach().abs().max()) for part in (x, mu.x))
            raise Overflow(
                f"{self.name} attention overflows {x.dtype} at these tokens, whose entries reach"
                f" {largest:.3g}: scores or values are out of range. Use smaller tokens, a smaller"
                " scale of the heads or a wider dtype."
            )
        return found

    def push(self, mu: Particles) -> Particles:
        r"""The measure $F(\mu) = (\Gamma_\mu)_\# \mu$ that one attention layer makes of mu."""
        if not isinstance(mu, Particles):
            raise TypeError(
                f"push needs a Particles, got {described(mu)}. Sample a Gaussian first, or use"
                " attention.affine(gaussian)."
            )
        return mu.at(self(mu.x, mu))

    def affine(self, mu: Gaussian) -> Affine:
        r"""The field $\Gamma_\mu(x) = Bx + b$ on a Gaussian, or `NoClosedForm`."""
        if not isinstance(mu, Gaussian):
            raise TypeError(f"affine needs a Gaussian, got {described(mu)}.")
        check_same_kind("gaussian", mu.mean, "heads", self.heads.query)
        check_shape(
            "gaussian.mean",
            mu.mean,
            (*mu.mean.shape[:-1], self.heads.dim),
            "the dimension of the heads",
        )
        if self.causal or self.heads.positional:
            raise NoClosedForm(
                f"{self.name} attention whose scores depend on the place of a token has no closed"
                " form on a Gaussian: only when every position has the same law is the causal flow"
                " Gaussian, and then it is the unmasked one. Use causal=False, or particles."
            )
        made = self.on_gaussian(mu)
        if not (made.matrix.isfinite().all() and made.offset.isfinite().all()):
            raise Overflow(
                f"the field of {self.name} attention on this Gaussian overflows {mu.mean.dtype}."
                " Scale the heads or the Gaussian down."
            )
        return made

    def check(self, x: object, mu: object, positions: Tensor | None = None) -> Tensor | None:
        """Refuse what does not fit this attention; return the places of the queries where they
        matter.
        """
        if not isinstance(mu, Particles):
            hint = (
                " Use attention.affine(gaussian), or particles: gaussian.quadrature(order)."
                if isinstance(mu, Gaussian)
                else ""
            )
            raise TypeError(
                f"attention(x, mu) needs mu to be a Particles, got {described(mu)}.{hint}"
            )
        check_tensor("x", x, "... m d")
        assert isinstance(x, Tensor)
        check_same_kind("x", x, "mu.x", mu.x)
        check_same_kind("mu.x", mu.x, "the heads", self.heads.query)
        check_shape("mu.x", mu.x, (*mu.x.shape[:-1], self.heads.dim), "the dimension of the heads")
        check_shape(
            "x", x, (*mu.x.shape[:-2], x.shape[-2], self.heads.dim), "the stack and dimension of mu"
        )
        bias = self.heads.position_bias
        if bias is not None and mu.n > bias.shape[-1]:
            raise ValueError(
                f"the position bias of these heads serves sequences of at most {bias.shape[-1]}"
                f" tokens, got {mu.n}."
            )
        if self.heads.positional and mu.positions is not None:
            raise ValueError(
                "rotary heads and position biases read tokens in their order: build the Particles"
                " without positions."
            )
        if positions is not None:
            check_tensor("positions", positions, "... m")
            check_same_kind("positions", positions, "x", x)
            check_shape("positions", positions, tuple(x.shape[:-1]), "one per query")
            self._check_places(positions, mu.n)
        if not self.causal and not self.heads.positional:
            return None
        positions = self._places(x, mu, positions)
        if self.causal and self.normalised:
            first = mu.places().masked_fill(mu.weights == 0, float("inf")).amin(-1, keepdim=True)
            if (positions < first).any():
                raise ValueError(
                    f"a query at place {float(positions.min()):.6g} reads no mass: the first"
                    f" particle with mass stands at {float(first.max()):.6g}. Move the query, or"
                    " give the first particles some weight."
                )
        return positions

    def to(self: Variant, target: torch.dtype | torch.device | str) -> Variant:
        """The same attention in another dtype or on another device."""
        return dataclasses.replace(self, heads=self.heads.to(target))

    # What variants build on.

    def dense(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack m d"]:
        """The field with the whole coupling in memory: plain tensor algebra that every `torch.func`
        transform can differentiate.
        """
        return self.heads.write(self.coupling(x, mu, positions) @ self.heads.read(mu.x))

    def scores(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack h m n"]:
        r"""scale $\langle Q_h x + b_Q, K_h y + b_K \rangle$, rotary embedding and position bias
        included.
        """
        at, to = self.token_numbers(x, mu, positions)
        scores = self.heads.scale * self.heads.queries(x, at) @ self.heads.keys(mu.x, to).mT
        bias = self.position_bias(at, to)
        return scores if bias is None else scores + bias

    def visible(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Bool[Tensor, "*stack 1 m n"] | None:
        """Which particle each query may read; None when it may read all."""
        if not self.causal:
            return None
        places = self._places(x, mu, positions)
        return mu.places()[..., None, None, :] <= places[..., None, :, None]

    def mass(
        self,
        x: Float[Tensor, "*stack m d"],
        mu: Particles,
        positions: Float[Tensor, "*stack m"] | None = None,
    ) -> Float[Tensor, "*stack 1 m_or_1 n"]:
        """The mass that each query finds at each particle: the weights, zero where the mask hides
        them.
        """
        weights = mu.weights[..., None, None, :]
        visible = self.visible(x, mu, positions)
        return weights if visible is None else weights * visible

    def token_numbers(
        self, x: Tensor, mu: Particles, positions: Tensor | None
    ) -> tuple[Int[Tensor, " m"] | None, Int[Tensor, " n"] | None]:
        """Whole numbers of queries and keys in their sequence, for heads whose scores depend on
        them.
        """
        if not self.heads.positional:
            return None, None
        numbers = torch.arange(mu.n, device=mu.x.device)
        if positions is None and x.shape[-2] == mu.n:
            return numbers, numbers
        places = self._places(x, mu, positions).reshape(-1, x.shape[-2])[0]
        return torch.round(places * mu.n).long() - 1, numbers

    def position_bias(self, at: Tensor | None, to: Tensor | None) -> Float[Tensor, "h m n"] | None:
        """The part of the heads' position bias that these tokens use."""
        bias = self.heads.position_bias
        return None if bias is None or at is None or to is None else bias[:, at[:, None], to]

    def _places(self, x: Tensor, mu: Particles, positions: Tensor | None) -> Tensor:
        if positions is not None:
            return positions
        if x.shape[-2] != mu.n:
            raise ValueError(
                f"{self.name} attention depends on where the {x.shape[-2]} queries stand among the"
                f" {mu.n} particles: pass positions, one number in [0, 1] per query."
            )
        return mu.places()

    def _check_places(self, positions: Tensor, n: int) -> None:
        if positions.min() < 0 or positions.max() > 1:
            raise ValueError(
                f"positions must lie in [0, 1], got values from {positions.min():.6g} to"
                f" {positions.max():.6g}."
            )
        if not self.heads.positional:
            return
        numbers = torch.round(positions.reshape(-1, positions.shape[-1]) * n)
        if (numbers < 1).any() or (numbers != numbers[0]).any():
            raise ValueError(
                "rotary heads and position biases read token i of n at position i/n, the same in"
                f" every sequence of a stack; got positions from {positions.min():.6g} for n = {n}."
                " Call once per sequence where they differ."
            )
