"""Tests of one figure stand one after the other, so that one process alone computes its rows."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [
        place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent
    ]
    ordered = sorted((items[place] for place in places), key=figure)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def figure(item: pytest.Item) -> tuple[str, str]:
    """Its file, and the figure that it is about."""
    spec = getattr(item, "callspec", None)
    return item.path.name, "" if spec is None else spec.params.get("name", "")
