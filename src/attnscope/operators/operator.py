r"""Linear maps known through products: the Jacobian of attention, or of any function, without a
matrix.

The metric belongs to the operator: `rmv` is the adjoint in $L^2(\mu)$, $\langle u, v\rangle_\mu =
\sum_i w_i\langle u_i, v_i\rangle$.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.operators.precision import wide
from attnscope.validation import brief, check_same_kind, check_shape, check_tensor

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

MOST_DENSE_ENTRIES = 2**27
AGREEMENT = 1e-3
"""How far products with a Jacobian and with its adjoint may differ: models that round inside to
float32 stay far below.
"""


@dataclass(frozen=True, eq=False)
class Gram:
    """A symmetric matrix that measures each token of a map's outputs."""

    matrix: Float[Tensor, "c c"]
    size: float
    """Its Frobenius norm."""

    def __call__(self, y: Float[Tensor, "b N"]) -> Float[Tensor, "b N"]:
        return (y.reshape(-1, len(self.matrix)) @ self.matrix).view(y.shape)


@dataclass(frozen=True, eq=False)
class LinearOperator:
    """A linear map between tensors, or a stack of independent ones: vectors have shape
    `(*stack, *in_shape)`.

    `mv` applies it and `rmv` its adjoint in the metric of `weights` (None: the Euclidean one).
    `exact` is the same map in float64 when this one is not; `coarse` that of a float64 one in
    float32, where its products may find what float64 ones then judge; `restrict(index)` is the
    sub-stack of these problems; `rounding` is the relative error of a product where it may exceed
    what the precision explains; `lighter` is a map of the same right singular vectors and singular
    values that costs less, for searches from whose coefficients nothing is proved. Its outputs y
    have the norm $\\langle y, Gy\\rangle^{1/2}$, `gram` being G, and its `rmv` takes Gy.
    """

    mv: Callable[[Tensor], Tensor]
    rmv: Callable[[Tensor], Tensor]
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stack: tuple[int, ...] = ()
    weights: Float[Tensor, "*stack n"] | None = None
    exact: Callable[[], LinearOperator] | None = None
    restrict: Callable[[Tensor], LinearOperator] | None = None
    rounding: float = field(default=0.0, repr=False)
    coarse: Callable[[], LinearOperator] | None = field(default=None, repr=False)
    lighter: Callable[[], LinearOperator] | None = field(default=None, repr=False)
    gram: Gram | None = field(default=None, repr=False)

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of one problem, as a matrix."""
        return math.prod(self.out_shape), math.prod(self.in_shape)

    def __matmul__(self, inner: LinearOperator) -> LinearOperator:
        """The composition: first `inner`, then this map, in the metric of this map."""
        if (
            inner.out_shape != self.in_shape
            or inner.stack != self.stack
            or inner.dtype != self.dtype
        ):
            raise ValueError(
                f"cannot compose a map on {self.in_shape} ({self.stack}, {self.dtype}) with one"
                f" onto {inner.out_shape} ({inner.stack}, {inner.dtype}): shapes, stacks and dtypes"
                " must agree."
            )
        if self.weights is not inner.weights and (
            self.weights is None or inner.weights is None or not self.weights.equal(inner.weights)
        ):
            raise ValueError(
                "cannot compose maps of different weights: their adjoints belong to different"
                " metrics."
            )

        def composed(outer: Any, own: Any) -> Any:
            if outer is None or own is None:
                return None
            return lambda *index: outer(*index) @ own(*index)

        return replace(
            self,
            mv=lambda u: self.mv(inner.mv(u)),
            rmv=lambda u: inner.rmv(self.rmv(u)),
            in_shape=inner.in_shape,
            lighter=None,
            exact=composed(self.exact, inner.exact),
            coarse=composed(self.coarse, inner.coarse),
            restrict=composed(self.restrict, inner.restrict),
            rounding=self.rounding + inner.rounding,
        )

    def plus(self, multiple: float) -> LinearOperator:
        """This map plus a multiple of the identity: a residual connection."""
        if self.in_shape != self.out_shape:
            raise ValueError(
                f"a residual connection needs equal shapes, got a map from {self.in_shape} to"
                f" {self.out_shape}."
            )
        return self._derived(
            lambda op: op.plus(multiple),
            lighter=None,
            mv=lambda u: self.mv(u) + multiple * u,
            rmv=lambda u: self.rmv(u) + multiple * u,
        )

    def adjoint(self) -> LinearOperator:
        """The adjoint map, in the same metric."""
        return self._derived(
            LinearOperator.adjoint,
            lighter=None,
            mv=self.rmv,
            rmv=self.mv,
            in_shape=self.out_shape,
            out_shape=self.in_shape,
        )

    def whitened(self) -> LinearOperator:
        r"""The same map in coordinates where the metric is Euclidean: $D^{1/2} J D^{-1/2}$."""
        if self.weights is None:
            return self
        root = self.weights.sqrt().unsqueeze(-1)
        return self._derived(
            LinearOperator.whitened,
            lighter=_after(self.lighter, LinearOperator.whitened),
            mv=lambda u: self.mv(u / root) * root,
            rmv=lambda u: self.rmv(u / root) * root,
            weights=None,
        )

    def flat(self) -> LinearOperator:
        """The same whitened map on vectors (b, N), its stack as one axis (of length 1 when there is
        none).
        """
        op, problems = self.whitened(), math.prod(self.stack)

        def on_vectors(
            product: Callable[[Tensor], Tensor], shape: tuple[int, ...]
        ) -> Callable[[Tensor], Tensor]:
            return lambda u: product(u.reshape((*op.stack, *shape))).reshape(problems, -1)

        return op._derived(
            LinearOperator.flat,
            lighter=_after(op.lighter, LinearOperator.flat),
            mv=on_vectors(op.mv, op.in_shape),
            rmv=on_vectors(op.rmv, op.out_shape),
            in_shape=(op.shape[1],),
            out_shape=(op.shape[0],),
            stack=(problems,),
        )

    def _derived(
        self, transform: Callable[[LinearOperator], LinearOperator], **changes: Any
    ) -> LinearOperator:
        """This operator with changes; `transform` makes the same change to its float64 and
        restricted forms.
        """
        part = self.restrict
        return replace(
            self,
            exact=_after(self.exact, transform),
            coarse=_after(self.coarse, transform),
            restrict=None if part is None else lambda index: transform(part(index)),
            **changes,
        )

    def to_dense(self) -> Float[Tensor, "*stack rows columns"]:
        """The whole matrix, column by column: for small maps."""
        rows, columns = self.shape
        if rows * columns * math.prod(self.stack) > MOST_DENSE_ENTRIES:
            raise ValueError(
                f"a dense matrix of {rows} x {columns} entries is too large. Use mv and rmv, or"
                " spectral_norm, which need no matrix."
            )
        basis = torch.eye(columns, dtype=self.dtype, device=self.device)
        made = [
            self.mv(e.reshape(self.in_shape).expand(*self.stack, *self.in_shape)).reshape(
                *self.stack, rows
            )
            for e in basis
        ]
        dense = torch.stack(made, dim=-1)
        if not dense.isfinite().all():
            raise ValueError(
                f"products of this map overflow {self.dtype}. Scale the tokens or the heads down,"
                " or use a wider dtype."
            )
        return dense

    def to_scipy(self) -> ScipyOperator:
        """A scipy LinearOperator on flat vectors; its adjoint is the Euclidean one of the whitened
        map.
        """
        if self.stack:
            raise ValueError(
                f"scipy knows single maps, got a stack {self.stack}: pass one of them."
            )
        from scipy.sparse.linalg import LinearOperator as ScipyOperator

        op = self.flat()

        def on_arrays(product: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
            return lambda u: (
                product(torch.as_tensor(u).to(op.device, op.dtype).reshape(1, -1))[0].cpu().numpy()
            )

        kind = str(op.dtype).removeprefix("torch.")
        return ScipyOperator(
            op.shape, matvec=on_arrays(op.mv), rmatvec=on_arrays(op.rmv), dtype=kind
        )


def _after(
    made: Callable[[], LinearOperator] | None, transform: Callable[[LinearOperator], LinearOperator]
) -> Callable[[], LinearOperator] | None:
    return None if made is None else lambda: transform(made())


def of_function(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    stack: int = 0,
    double: Callable[[Tensor], Tensor] | None = None,
) -> LinearOperator:
    """The Jacobian of `function` at x; the first `stack` axes of x hold independent problems.

    `rmv` is a backward pass through the graph that is kept, and `mv` the derivative of that pass in
    its cotangent, or `torch.func.jvp` where that is not the adjoint of `rmv` (a backward pass may
    forget its own derivative). `double` is the same function on float64 tensors, for exact lower
    bounds of a function in lower precision.
    """
    check_tensor("x", x, "...")
    if isinstance(stack, bool) or not isinstance(stack, int) or not 0 <= stack < max(x.ndim, 1):
        raise ValueError(
            f"stack must be a number of leading axes of x, fewer than its {x.ndim}, got {stack!r}."
        )
    with torch.no_grad():
        value, again = function(x), function(x)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"the function must return one tensor, got {type(value).__name__}. Wrap it to pick the"
            " tensor you mean."
        )
    if not value.isfinite().all():
        bad = int((~value.isfinite()).sum())
        raise ValueError(
            f"the function's value must be finite, got {bad} NaN or infinite entries out of"
            f" {value.numel()}: an overflow in {value.dtype}, or a division by zero. Use smaller"
            " inputs or a wider dtype."
        )
    check_tensor("the function's value", value, "...")
    if not torch.equal(value, again):
        raise ValueError(
            "the function answers differently when called twice. Is dropout left on? Call"
            " model.eval() first."
        )
    check_same_kind("the function's value", value, "x", x)
    check_shape(
        "the function's value",
        value,
        (*x.shape[:stack], *value.shape[stack:]),
        "the stack of x first",
    )
    causes = []
    for forward_mode in (False, True):
        try:
            op = _differentiated(function, x, stack, double, forward_mode)
            if _is_adjoint(op):
                return op
        except (NotImplementedError, RuntimeError) as failure:
            causes.append(failure)
            if "scaled_dot_product" in str(failure):
                raise ValueError(
                    "the function has no forward derivative: it calls a fused attention kernel."
                    ' Load the model with attn_implementation="eager", or write the attention with'
                    " plain matrix products."
                ) from failure
    why = (
        f" ({str(causes[-1]).splitlines()[0]})"
        if causes
        else ": its products with J and with its adjoint disagree"
    )
    raise ValueError(
        f"the function cannot be differentiated both ways{why}. Write it with PyTorch operations"
        " that have derivatives."
    )


def _differentiated(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    stack: int,
    double: Callable[[Tensor], Tensor] | None,
    forward_mode: bool,
) -> LinearOperator:
    """The operator, nothing checked."""
    at = x.detach().requires_grad_()
    with torch.enable_grad():
        value = function(at) + 0 * at.sum()  # a constant map has a Jacobian too
        probe = torch.zeros_like(value).requires_grad_()
        (pulled,) = torch.autograd.grad(value, at, probe, create_graph=True)

    def mv(u: Tensor) -> Tensor:
        if forward_mode:
            return torch.func.jvp(function, (x,), (u,))[1]
        return torch.autograd.grad(pulled, probe, u, retain_graph=True)[0]

    def restrict(index: Tensor) -> LinearOperator:
        return _differentiated(function, x.flatten(0, stack - 1)[index], 1, double, forward_mode)

    return LinearOperator(
        mv=mv,
        rmv=lambda v: torch.autograd.grad(value, at, v, retain_graph=True)[0],
        in_shape=tuple(x.shape[stack:]),
        out_shape=tuple(value.shape[stack:]),
        dtype=x.dtype,
        device=x.device,
        stack=tuple(x.shape[:stack]),
        exact=None if double is None else lambda: of_function(double, wide(x), stack),
        restrict=None if not stack else restrict,
    )


def _is_adjoint(op: LinearOperator) -> bool:
    r"""Whether $\langle JJ^Tr, r\rangle = |J^Tr|^2$ at a random r: a sum of squares, so that
    rounding hides no lost derivative.
    """
    generator = torch.Generator().manual_seed(0)
    r = torch.randn((*op.stack, *op.out_shape), generator=generator, dtype=torch.float64)
    r = r.to(op.dtype).to(op.device)
    pulled = op.rmv(r)
    size = float(pulled.abs().max()) or 1.0  # products of products may be out of range
    pulled = pulled / size
    there, back = (
        float((wide(a) * wide(b)).sum()) for a, b in ((op.mv(pulled), r), (pulled, pulled))
    )
    if not math.isfinite(there) or not math.isfinite(size):
        raise ValueError(
            f"the derivative at x has NaN or infinite entries: an overflow in {op.dtype}. Use"
            " smaller inputs or a wider dtype."
        )
    back *= size
    kind = torch.finfo(op.dtype)
    if size < kind.tiny / kind.eps:  # so near to zero that products have no digits to compare
        return True
    return abs(there - back) <= max(AGREEMENT, 32 * kind.eps) * back
