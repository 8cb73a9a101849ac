"""Where theorems are put to the test: one file per kind of place, found by its file.

A file has `WHERE`, the places that it serves, and `cases(theorem)`, which yields a `Case` for each
situation in which the theorem speaks.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from attnscope.bounds import Theorem


@dataclass(frozen=True)
class Case:
    """What a theorem says and the largest value that was found; `slope` is the bound as a function
    of a number near 1 that moves weights and radius, None where it has no gradient.
    """

    said: str
    bound: float
    truth: float
    slope: Callable[[Tensor], Tensor] | None


def cases_of(theorem: Theorem) -> Iterator[Case]:
    """Every case of the file that serves the place of this theorem."""
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if theorem.where in module.WHERE:
            yield from module.cases(theorem)
