"""Texts and images to measure on."""

from attnscope.data.texts import text, windows

__all__ = ["text", "windows"]
