"""Small problems on the path of large ones."""

from __future__ import annotations

import pytest

import attnscope.attention
from attnscope.attention import _normalised, _rows


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tiny problems take the path of large ones: two or three rows of the coupling at a
    time.
    """
    for name in dir(attnscope.attention):
        module = getattr(attnscope.attention, name)
        if hasattr(module, "CHUNK_BYTES"):
            monkeypatch.setattr(module, "CHUNK_BYTES", 300)
    monkeypatch.setattr(_normalised, "FUSED_BYTES", 400)
    assert _rows.CHUNK_BYTES == _normalised.CHUNK_BYTES == 300
