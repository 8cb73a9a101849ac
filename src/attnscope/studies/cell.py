"""`Cell`: a piece of work that is only names and numbers, so that it can be hashed, sent and found
again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from attnscope.validation import described

ASIDE = ("failure_probability",)
"""Fields that do not say what is computed, so that they are no part of the key."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of a study: a study derives a frozen dataclass with fields of its own.

    Fields are strings, numbers, None and tuples of these. Weights, texts and tokenizers stand here
    by their hash: equal keys mean equal rows, in any process.

    Args:
        failure_probability: With this probability, over the random starts, some probable bound in
            the cell's rows is wrong; 0 where nothing in them is random. Rows that were stored with
            a smaller one serve as well, so it is no part of the key.
    """

    failure_probability: float = 0.0
    planned: ClassVar[bool] = True
    """False for what stands in place of cells that cannot be made yet."""

    @property
    def group(self) -> str:
        """Cells of one group are made together: those of one model, say."""
        return ""

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            check_plain(f"{type(self).__name__}.{name}", value)
        if not 0 <= self.failure_probability < 1:
            raise ValueError(
                "the failure probability of a cell must lie in [0, 1), got"
                f" {self.failure_probability!r}."
            )

    @property
    def key(self) -> str:
        """A hash of what is computed: sha256 of the canonical JSON of the fields."""
        told = {name: value for name, value in self.as_dict().items() if name not in ASIDE}
        return sha256(canonical({"cell": type(self).__name__, **told}))

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The cell whose `as_dict` went through JSON, where tuples became lists."""
        return cls(**{name: tuples(value) for name, value in fields.items()})


def check_plain(name: str, value: object) -> None:
    """Refuse anything but strings, finite numbers, None and tuples of these."""
    if isinstance(value, tuple):
        for part in value:
            check_plain(name, part)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise TypeError(
            f"{name} must be a string, a number, None or a tuple of these, got"
            f" {described(value)}: put what is larger into the workbench, and its hash here."
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")


def canonical(value: Any) -> str:
    """JSON with sorted names and no spaces: equal values give equal strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tuples(value: Any) -> Any:
    """Lists, as JSON makes them, turned into tuples at every depth."""
    return tuple(tuples(part) for part in value) if isinstance(value, list | tuple) else value
