"""Single heads of any attention seen by a tap, each a problem of its own: soft-caps, sinks, masks
and biases included.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.operators.fused import Form, Inputs, Tiled
from attnscope.operators.kernels import Gradients, rounding_of


class Call(NamedTuple):
    """What g problems are given. `mask`, `bias` and `sinks` are as `fused_attention` reads them,
    for one head; the first axis of each is g, or 1 where it is the same for all.
    """

    q: Float[Tensor, "g m k"]
    k: Float[Tensor, "g n k"]
    v: Float[Tensor, "g n v"]
    mask: Tensor | None
    bias: Float[Tensor, "c 1 m n"] | None
    sinks: Float[Tensor, "c 1 1 1"] | None
    form: Form

    def to(self, dtype: torch.dtype) -> Call:
        """The same numbers in another precision."""
        bias = None if self.bias is None else self.bias.to(dtype)
        sinks = None if self.sinks is None else self.sinks.to(dtype)
        q, k, v = (part.to(dtype) for part in (self.q, self.k, self.v))
        return Call(q, k, v, self.mask, bias, sinks, self.form)

    def of(self, index: Int[Tensor, " c"]) -> Call:
        """These problems alone."""

        def some(part: Tensor | None) -> Tensor | None:
            return part if part is None or len(part) == 1 else part[index]

        q, k, v = (part[index] for part in (self.q, self.k, self.v))
        return Call(q, k, v, some(self.mask), some(self.bias), some(self.sinks), self.form)


@final
class TappedKernel:
    """Derivatives at one call, as `HeadStack` asks for them; key biases do not move."""

    @torch.no_grad()
    def __init__(self, call: Call) -> None:
        self.call = call
        self.slope: Tensor | None = None
        q, k, v = (part[:, None] for part in call[:3])
        self._tiled = Tiled(q, k, v, call.bias, call.sinks, call.mask, call.form, keep=True)
        self._o, self._rows = self._tiled.value()
        self.o: Float[Tensor, "g m v"] = self._o[:, 0]

    def jvp(
        self,
        q: Float[Tensor, "g m k"],
        k: Float[Tensor, "g n k"],
        v: Float[Tensor, "g n v"],
        bias: Float[Tensor, "g n"] | None = None,
    ) -> Float[Tensor, "g m v"]:
        """The change of the values."""
        assert bias is None, "keys have no bias that moves with them"
        change = Inputs(q[:, None], k[:, None], v[:, None])
        return self._tiled.jvp(self._o, self._rows, change)[:, 0]

    def vjp(self, o: Float[Tensor, "g m v"]) -> Gradients:
        """The adjoint."""
        found = self._tiled.vjp(self._o, self._rows, o[:, None], (False, False))
        q, k, v = (part[:, 0] for part in found[:3] if part is not None)
        return Gradients(q, k, v, None)

    def restricted(self, index: Int[Tensor, " c"]) -> TappedKernel:
        """These problems alone."""
        return TappedKernel(self.call.of(index))

    def rounding(self) -> float:
        """An estimate of the relative error of products."""
        return rounding_of(self.call.q, self.call.k, abs(self.call.form.scale))
