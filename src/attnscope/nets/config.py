"""What a network is made of, as plain data that goes into its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, final

from attnscope.attention import variants
from attnscope.layers import NORMS
from attnscope.validation import check_positive, described

KINDS = ("classifier", "language")
MLPS = ("sll", "convex", "residual", "none")
SMALLEST = 1e-18
"""Of step and half-width, and one over it the largest: their squares are numbers in float32."""
DEEPEST = 10_000
"""Layers; beyond this, building them would take longer than anyone waits."""
ACTIVATIONS = ("quadratic", "softplus", "relu")
LOOKS = ("near", "anywhere")


@final
@dataclass(frozen=True)
class Config:
    """A Transformer in numbers and names. `Config.vit(...)` and `Config.language(...)` fill in what
    the two uses have in common.
    """

    kind: str
    outputs: int
    """Classes of a classifier, vocabulary of a language model."""
    image: tuple[int, int, int] | None = None
    """Channels, height and width that a classifier reads."""
    patch: int | None = None
    learned_embedding: bool = False
    """Whether the matrix that embeds patches is trained; else it stays the isometry that it starts
    as.
    """
    length: int | None = None
    """The longest sequence that a language model reads."""
    dim: int = 48
    depth: int = 1
    attention: str = "softmax"
    """A variant of `attnscope.variants()`, or "none"."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Further options of the variant, such as {"tokens": 64} for sigmoid attention."""
    heads: int = 4
    head_dim: int = 12
    value_dim: int = 12
    position_bias: bool = True
    look: str = "near"
    """Where the heads of a classifier look before they are trained: at the patch next to them, or
    "anywhere", which suits tokens that must be compared however far apart they are.
    """
    content: bool = True
    """Whether tokens look at what others say; else A is 0 for good and they mix by place alone."""
    mlp: str = "sll"
    hidden: int = 128
    activation: str = "quadratic"
    half_width: float = 1.0
    norm: str = "none"
    step: float = 1.0
    pooling: str = "flatten"

    @classmethod
    def vit(cls, image: tuple[int, int, int], classes: int, patch: int, **parts: Any) -> Self:
        """A classifier of images that are cut into patches."""
        return cls(kind="classifier", outputs=classes, image=image, patch=patch, **parts)

    @classmethod
    def language(cls, vocabulary: int, length: int, **parts: Any) -> Self:
        """A causal model of the next token."""
        return cls(
            kind="language",
            outputs=vocabulary,
            length=length,
            **{"pooling": "tokens", "norm": "rms", "mlp": "residual", **parts},
        )

    def __post_init__(self) -> None:
        for name, allowed in (
            ("kind", KINDS),
            ("attention", (*variants(), "none")),
            ("mlp", MLPS),
            ("activation", ACTIVATIONS),
            ("norm", NORMS),
            ("pooling", ("tokens",) if self.kind == "language" else ("flatten", "mean")),
            ("look", LOOKS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}, got"
                    f" {described(getattr(self, name))}."
                )
        for name in ("outputs", "dim", "depth", "heads", "head_dim", "value_dim", "hidden"):
            _check_count(name, getattr(self, name))
        for name in ("half_width", "step"):
            check_positive(name, getattr(self, name))
            if not SMALLEST <= getattr(self, name) <= 1 / SMALLEST:
                raise ValueError(
                    f"{name} must lie between {SMALLEST} and {1 / SMALLEST}, got"
                    f" {described(getattr(self, name))}."
                )
        for name in ("position_bias", "content", "learned_embedding"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{name} must be true or false, got {described(getattr(self, name))}."
                )
        if self.depth > DEEPEST:
            raise ValueError(f"depth must be at most {DEEPEST}, got {described(self.depth)}.")
        numbers = isinstance(self.options, Mapping) and all(
            isinstance(value, int | float) for value in self.options.values()
        )
        if not numbers:
            raise ValueError(
                f"options must be a mapping of names to numbers, got {described(self.options)}."
            )
        self._check_input()

    def _check_input(self) -> None:
        if self.kind == "language":
            _check_count("length", self.length)
            return
        if not isinstance(self.image, tuple | list) or len(self.image) != 3:
            raise ValueError(
                f"image must be (channels, height, width), got {described(self.image)}."
            )
        for name, size in zip(("channels", "height", "width"), self.image, strict=True):
            _check_count(name, size)
        _check_count("patch", self.patch)
        object.__setattr__(self, "image", tuple(self.image))
        if self.image[1] % self.side or self.image[2] % self.side:
            raise ValueError(
                f"patches of {self.patch} pixels do not tile an image of {self.image[1]} x"
                f" {self.image[2]}."
            )

    @property
    def side(self) -> int:
        """Pixels along one side of a patch."""
        assert self.patch is not None
        return self.patch

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches; a sentence is one row."""
        if self.image is None:
            assert self.length is not None
            return 1, self.length
        return self.image[1] // self.side, self.image[2] // self.side

    @property
    def tokens(self) -> int:
        """How many tokens an image, or the longest sentence, has."""
        return self.grid[0] * self.grid[1]

    def least_numbers(self) -> int:
        """How many weights such a network has at least, without building it: its matrices."""
        pixels = None if self.image is None else self.image[0] * self.side**2
        embedding = self.dim * (self.outputs if pixels is None else pixels) + self.tokens * self.dim
        layer = 0
        if self.attention != "none":
            layer += 2 * self.heads * self.dim * (self.head_dim + self.value_dim)
            layer += self.heads * self.tokens**2 if self.position_bias else 0
        if self.mlp != "none":
            layer += self.hidden * self.dim
        head = self.outputs * self.dim * (self.tokens if self.pooling == "flatten" else 1)
        return embedding + self.depth * layer + head

    def as_dict(self) -> dict[str, Any]:
        """What goes into a JSON file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`; an unknown or missing field is refused by name."""
        known = {part.name for part in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(
                f"a network has no part called {', '.join(unknown)}; it has"
                f" {', '.join(sorted(known))}."
            )
        if missing := sorted({"kind", "outputs"} - set(given)):
            raise ValueError(f"the description of a network lacks {', '.join(missing)}.")
        image = given.get("image")
        return cls(**{**given, "image": tuple(image) if isinstance(image, list) else image})


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {described(value)}.")
