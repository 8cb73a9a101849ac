"""Texts, token ids and images to measure on."""

from attnscope.data.ids import read_ids
from attnscope.data.pictures import Images, images
from attnscope.data.texts import text, windows

__all__ = ["Images", "images", "read_ids", "text", "windows"]
