"""Texts and images to measure on."""

from attnscope.data.pictures import Images, images
from attnscope.data.texts import text, windows

__all__ = ["Images", "images", "text", "windows"]
