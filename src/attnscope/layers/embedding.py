"""From images and token numbers to tokens, each at its position."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.layers.contract import AffineLayer, Unbounded, same
from attnscope.norms import spectral
from attnscope.validation import described


@final
class PatchEmbedding(AffineLayer):
    r"""Image to tokens: $x_i = E(\text{patch}_i - \frac12) + p_i$, patches of size s that tile the
    image [dosovitskiy21].

    E starts as an isometry (or the adjoint of one), so that pixels and tokens move by the same
    amount; unless it is `learned` it stays one.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        patch: int,
        dim: int,
        generator: torch.Generator,
        learned: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = image
        self.image, self.patch = image, patch
        self.tokens = (height // patch) * (width // patch)
        pixels = channels * patch**2
        self.weight = nn.Parameter(isometry(dim, pixels, generator), requires_grad=learned)
        self.position = nn.Parameter(0.02 * torch.randn(self.tokens, dim, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or tuple(x.shape[-3:]) != self.image:
            raise ValueError(
                f"images must have shape (..., {', '.join(map(str, self.image))}), got"
                f" {described(x)}."
            )
        return (self.patches(x) - 0.5) @ self.weight.mT + self.position

    def patches(self, x: Float[Tensor, "*stack C H W"]) -> Float[Tensor, "*stack n pixels"]:
        """The pixels of each patch, row by row of patches."""
        s = self.patch
        *stack, channels, height, width = x.shape
        tiled = x.reshape(*stack, channels, height // s, s, width // s, s)
        return tiled.movedim((-5, -3, -1), (-3, -2, -1)).reshape(
            *stack, self.tokens, channels * s * s
        )

    def norm(self) -> Float[Tensor, ""]:
        return spectral(self.weight.detach().double())

    def budget(
        self, x: Float[Tensor, "k C H W"], norm: Float[Tensor, ""]
    ) -> Float[Tensor, "k n n"] | None:
        """Token i moves by at most the norm of E times the length of patch i."""
        return norm * same(x, self.tokens)

    def cut(self) -> Callable[[Tensor], Tensor] | None:
        return self.patches

    def span(self) -> Float[Tensor, "d m"] | None:
        """Tokens have as many coordinates to move in as a patch has pixels."""
        dim, pixels = self.weight.shape
        return None if pixels >= dim else torch.linalg.qr(self.weight.detach().double()).Q


@final
class TokenEmbedding(Unbounded):
    """Token numbers to vectors, plus a learned vector per place in the sequence."""

    why = (
        "token numbers cannot move by less than one, so an embedding of tokens has no l2 bound: "
        "certify the layers after it, from the embedded tokens on."
    )

    def __init__(self, vocabulary: int, length: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, dim, generator=generator) / dim**0.5)
        self.position = nn.Parameter(0.02 * torch.randn(length, dim, generator=generator))

    def forward(self, x: Int[Tensor, "*stack n"]) -> Tensor:
        if x.is_floating_point() or x.ndim < 1 or x.numel() == 0:
            raise TypeError(
                f"a language model reads token numbers of shape (..., n), got {described(x)}."
            )
        vocabulary, length = self.weight.shape[0], self.position.shape[0]
        if not 1 <= x.shape[-1] <= length:
            raise ValueError(f"this model reads 1 to {length} tokens at once, got {x.shape[-1]}.")
        if int(x.min()) < 0 or int(x.max()) >= vocabulary:
            raise ValueError(
                f"token numbers must lie in 0..{vocabulary - 1}, got {int(x.min())} to"
                f" {int(x.max())}."
            )
        return self.weight[x] + self.position[: x.shape[-1]]


def isometry(rows: int, columns: int, generator: torch.Generator) -> Float[Tensor, "rows columns"]:
    """A random matrix whose columns (or rows, when there are fewer of them) are orthonormal."""
    tall = torch.linalg.qr(
        torch.randn(max(rows, columns), min(rows, columns), generator=generator)
    ).Q
    return (tall if rows >= columns else tall.mT).contiguous()
