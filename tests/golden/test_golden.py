"""No proved bound became larger, no certificate smaller, no constant moved, no name is gone."""

from __future__ import annotations

import math

import pytest

import cases
from cases import Number

PINNED = cases.read()

RENAMED = {
    "L2": "L1c box",
    "L2i": "L1c entrywise",
    "L2-sigmoid": "sigmoid coupling",
}
"""Candidates of `sensitivity` that have a new name: the pinned name to the one of today."""

ALLOWED = 1e-9
"""Relative change of a bound or a certificate in the wrong direction that rounding may cause."""
AGREEMENT = 1e-8
"""Relative distance, to the largest number of its key, within which a constant must stay."""
FORWARD = 1e-6
"""The same for numbers of models, whose own layers take norms and angles in float32 even among
float64 weights: their rounding depends on the processor.
"""
BEHIND_MODELS = ("models", "measured models")


def current(key: str) -> str:
    """The key under which a pinned number is found today."""
    start, candidate, name = key.rpartition("/candidate/")
    return f"{start}{candidate}{RENAMED.get(name, name)}" if candidate else key


def complaint(old: Number, new: Number | None, rounding: float = 0.0) -> str | None:
    """What is wrong with a new number, or None; `rounding` is allowed to what was computed before
    it.
    """
    if new is None:
        return "is gone"
    if new.kind != old.kind:
        return f"was a {old.kind} and is a {new.kind}"
    before, after = (
        one.value if isinstance(one.value, list) else [one.value] for one in (old, new)
    )
    if len(before) != len(after):
        return f"had {len(before)} numbers and has {len(after)}"
    largest = max((abs(one) for one in before), default=0.0)
    wrong = [
        (a, b)
        for a, b in zip(before, after, strict=True)
        if not _holds(old.kind, a, b, largest, rounding)
    ]
    return (
        f"{old.kind}: {', '.join(f'{a!r} became {b!r}' for a, b in wrong[:3])}" if wrong else None
    )


def _holds(kind: str, old: float, new: float, largest: float, rounding: float) -> bool:
    if math.isnan(new):
        return False
    if kind == "constant":
        return new == old or abs(new - old) <= max(AGREEMENT, rounding) * largest
    allowed = max(ALLOWED, rounding) * abs(old)
    return new <= old + allowed if kind == "bound" else new >= old - allowed


@pytest.mark.usefixtures("unchecked", "without_pictures")
@pytest.mark.parametrize("group", list(cases.GROUPS))
def test_the_numbers_are_as_good_as_they_were(group: str) -> None:
    found = cases.run(group)
    rounding = FORWARD if group in BEHIND_MODELS else 0.0
    wrong = {
        key: complaint(old, found.get(current(key)), rounding) for key, old in PINNED[group].items()
    }
    said = [f"{key}: {why}" for key, why in wrong.items() if why is not None]
    assert not said, f"{len(said)} of {len(wrong)} pinned numbers, among them:\n" + "\n".join(
        said[:20]
    )


def test_every_group_is_pinned_and_still_computed() -> None:
    assert set(PINNED) == set(cases.GROUPS)
    assert all(PINNED.values())


def test_new_names_are_those_of_candidates_that_were_pinned() -> None:
    pinned = {key.rpartition("/candidate/")[2] for key in PINNED["sensitivity"]}
    assert set(RENAMED) <= pinned


@pytest.mark.parametrize(
    ("kind", "old", "new", "fine"),
    [
        ("bound", 2.0, 1.0, True),
        ("bound", 2.0, 2.0 + 1e-8, False),
        ("bound", 2.0, math.nan, False),
        ("bound", math.inf, 3.0, True),
        ("bound", 3.0, math.inf, False),
        ("bound", 0.0, 1e-300, False),
        ("lower", 2.0, 3.0, True),
        ("lower", 2.0, 2.0 - 1e-8, False),
        ("certificate", 1.0, 0.0, False),
        ("certificate", -1.0, -1.0 + 1e-12, True),
        ("constant", 1.0, 1.0 + 1e-9, True),
        ("constant", 1.0, 1.0 - 1e-7, False),
        ("constant", math.inf, math.inf, True),
        ("constant", 1.0, [1.0, 1.0], False),
    ],
)
def test_the_comparison_itself(kind: str, old: float, new: float | list[float], fine: bool) -> None:
    assert (complaint(Number(kind, old), Number(kind, new)) is None) is fine
    assert complaint(Number(kind, old), None) == "is gone"
