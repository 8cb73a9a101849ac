r"""`Heads`: the linear maps around the attention kernel, one set per head."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.validation import check_positive, check_same_kind, check_shape, check_tensor


@final
@dataclass(frozen=True, eq=False, init=False)
class Heads:
    r"""Query, key, value and output of each head; the score of $x$ reading $y$ is scale $\langle
    Q_h x + b_Q, K_h y + b_K \rangle$.

    `query`, `key` are (h, k, d), `value` is (h, v, d), `output` is (h, d, v) or None: then v = d
    and heads are summed. Biases are (h, k), (h, k), (h, v) and (d,). `scale` is $1/\sqrt{k}$ by
    default.

    Two optional parts depend on the place of a token in its sequence: `rotary` (k/2,) holds the
    angles per token by which coordinate pairs (r, r + k/2) of queries and keys turn, and
    `position_bias` (h, N, N) is added to the scores of sequences of at most N tokens.
    """

    query: Float[Tensor, "h k d"]
    key: Float[Tensor, "h k d"]
    value: Float[Tensor, "h v d"]
    output: Float[Tensor, "h d v"] | None
    query_bias: Float[Tensor, "h k"] | None
    key_bias: Float[Tensor, "h k"] | None
    value_bias: Float[Tensor, "h v"] | None
    output_bias: Float[Tensor, " d"] | None
    scale: float
    rotary: Float[Tensor, " half"] | None
    position_bias: Float[Tensor, "h N N"] | None

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor | None = None,
        query_bias: Tensor | None = None,
        key_bias: Tensor | None = None,
        value_bias: Tensor | None = None,
        output_bias: Tensor | None = None,
        scale: float | None = None,
        rotary: Tensor | None = None,
        position_bias: Tensor | None = None,
    ) -> None:
        check_tensor("query", query, "h k d")
        check_tensor("key", key, "h k d")
        check_tensor("value", value, "h v d")
        h, k, d = query.shape
        v = value.shape[1]
        longest = (
            position_bias.shape[-1]
            if isinstance(position_bias, Tensor) and position_bias.ndim
            else 0
        )
        expected: dict[str, tuple[Tensor | None, str, tuple[int, ...]]] = {
            "key": (key, "h k d", (h, k, d)),
            "value": (value, "h v d", (h, v, d)),
            "output": (output, "h d v", (h, d, v)),
            "query_bias": (query_bias, "h k", (h, k)),
            "key_bias": (key_bias, "h k", (h, k)),
            "value_bias": (value_bias, "h v", (h, v)),
            "output_bias": (output_bias, "d", (d,)),
            "rotary": (rotary, "k/2", (k // 2,)),
            "position_bias": (position_bias, "h N N", (h, longest, longest)),
        }
        object.__setattr__(self, "query", query)
        for name, (tensor, axes, shape) in expected.items():
            if tensor is not None:
                check_tensor(name, tensor, axes)
                check_same_kind(name, tensor, "query", query)
                check_shape(name, tensor, shape, f"({axes}) to go with query {tuple(query.shape)}")
            object.__setattr__(self, name, tensor)
        if output is None and v != d:
            raise ValueError(
                f"without output the value matrices must be (h, {d}, {d}), got"
                f" {tuple(value.shape)}. Pass output."
            )
        if rotary is not None and k % 2:
            raise ValueError(f"rotary needs an even head size k, got k = {k}.")
        if scale is not None:
            check_positive("scale", scale)
        object.__setattr__(self, "scale", 1 / math.sqrt(k) if scale is None else float(scale))

    @classmethod
    def from_matrices(cls, A: Tensor, V: Tensor) -> Heads:
        r"""Heads with score $\langle A x, y \rangle$ and value $V y$: one for (d, d) matrices, one
        each for (h, d, d).
        """
        for name, matrix in (("A", A), ("V", V)):
            check_tensor(name, matrix, "... d d")
            check_shape(name, matrix, (*matrix.shape[:-1], matrix.shape[-2]), "square")
        check_same_kind("V", V, "A", A)
        check_shape("V", V, tuple(A.shape), "the shape of A")
        if A.ndim > 3:
            raise ValueError(
                f"A must be (d, d), or (h, d, d) for h heads, got shape {tuple(A.shape)}."
            )
        query = A.reshape(-1, *A.shape[-2:])
        identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(query)
        return cls(query, identity, V.reshape(query.shape), scale=1.0)

    @staticmethod
    def from_parts(parts: Mapping[str, Any]) -> Heads:
        """Heads of parts by name that were checked before (not checked again: under
        `torch.func.vmap` no number can be looked at).
        """
        made = object.__new__(Heads)
        for name, part in parts.items():
            object.__setattr__(made, name, part)
        return made

    def parts(self) -> dict[str, Any]:
        """Every part by its name, the scale included."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        k, v, d = self.query.shape[1], self.value.shape[1], self.dim
        rest = [f"v={v}"] if v not in (k, d) else []
        rest += [
            field.name
            for field in dataclasses.fields(self)
            if field.name not in ("query", "key", "value", "scale")
            and getattr(self, field.name) is not None
        ]
        rest += [f"scale={self.scale:.6g}", str(self.query.dtype).removeprefix("torch.")]
        return f"Heads({self.count} x k={k}, d={d}, {', '.join(rest)})"

    @property
    def count(self) -> int:
        return self.query.shape[0]

    @property
    def dim(self) -> int:
        return self.query.shape[-1]

    @property
    def positional(self) -> bool:
        """Whether scores depend on the place of a token and not on its value alone."""
        return self.rotary is not None or self.position_bias is not None

    @property
    def a(self) -> Float[Tensor, "h d d"]:
        r"""$A_h$ = scale $K_h^T Q_h$: the score is $\langle A_h x, y \rangle$ plus what the biases
        add.
        """
        return self.scale * self.key.mT @ self.query

    @property
    def values(self) -> Float[Tensor, "h d d"]:
        r"""$C_h = W_h V_h$, the whole linear map from a token to what a head writes."""
        return self.value if self.output is None else self.output @ self.value

    @property
    def constant(self) -> Float[Tensor, " d"]:
        r"""$b_O + \sum_h W_h b_{V,h}$: what the biases add when the coupling has mass one."""
        total = torch.zeros(self.dim, dtype=self.query.dtype, device=self.query.device)
        if self.value_bias is not None:
            out = (
                self.value_bias
                if self.output is None
                else (self.output @ self.value_bias[..., None])[..., 0]
            )
            total = total + out.sum(0)
        return total if self.output_bias is None else total + self.output_bias

    def select(self, *which: int) -> Heads:
        """The heads of these numbers alone, the output bias left out (it belongs to no head)."""
        index = torch.tensor(which, device=self.query.device)
        per_head: dict[str, Any] = {
            field.name: (
                None
                if (tensor := getattr(self, field.name)) is None
                else tensor.index_select(0, index)
            )
            for field in dataclasses.fields(self)
            if field.name not in ("scale", "rotary", "output_bias")
        }
        return Heads(**per_head, scale=self.scale, rotary=self.rotary)

    def to(self, target: torch.dtype | torch.device | str) -> Heads:
        """The same heads in another dtype or on another device."""
        moved = self.parts()
        moved |= {name: part.to(target) for name, part in moved.items() if isinstance(part, Tensor)}
        return Heads(**moved)

    def queries(
        self, x: Float[Tensor, "*stack m d"], at: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "*stack h m k"]:
        """Queries of each head, turned by the rotary embedding for tokens number `at`."""
        return self._turn(_project(x, self.query, self.query_bias), at)

    def keys(
        self, y: Float[Tensor, "*stack n d"], at: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "*stack h n k"]:
        """Keys of each head, turned by the rotary embedding for tokens number `at`."""
        return self._turn(_project(y, self.key, self.key_bias), at)

    def read(self, y: Float[Tensor, "*stack n d"]) -> Float[Tensor, "*stack h n v"]:
        """What each head reads off a token: $V_h y + b_V$."""
        return _project(y, self.value, self.value_bias)

    def write(self, out: Float[Tensor, "*stack h m v"]) -> Float[Tensor, "*stack m d"]:
        """The heads' results put together: $\\sum_h W_h o_h + b_O$."""
        total = (
            out.sum(-3)
            if self.output is None
            else torch.einsum("...hmv,hdv->...md", out, self.output)
        )
        return total if self.output_bias is None else total + self.output_bias

    def turn(
        self, z: Float[Tensor, "*stack h n k"], at: Int[Tensor, " n"]
    ) -> Float[Tensor, "*stack h n k"]:
        """Rotate coordinate pairs (r, r + k/2) by the angle rotary[r] times the token's number;
        `-at` turns back.
        """
        assert self.rotary is not None
        angle = at[:, None].to(z.dtype) * self.rotary
        cos, sin = angle.cos(), angle.sin()
        first, second = z.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _turn(self, z: Tensor, at: Tensor | None) -> Tensor:
        if self.rotary is None:
            return z
        if at is None:
            raise ValueError("rotary heads need token numbers: pass at=torch.arange(n).")
        return self.turn(z, at)


def _project(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.einsum("...nd,hkd->...hnk", x, matrix)
    return out if bias is None else out + bias[:, None, :]
