"""The checker behind the import hook: beartype, to which an int is a float and a method that
returns Self is not checked.
"""

from __future__ import annotations

from typing import TypeVar

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep673Exception

Checked = TypeVar("Checked")


def checked(function: Checked) -> Checked:
    try:
        return beartype(function, conf=BeartypeConf(is_pep484_tower=True))
    except BeartypeDecorHintPep673Exception:
        return function
