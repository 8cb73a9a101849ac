"""Texts, token ids, embeddings and images to measure on."""

from attnscope.data.embeddings import read_embeddings
from attnscope.data.ids import read_ids
from attnscope.data.pictures import Images, images, local_images
from attnscope.data.texts import text, text_lines, windows

__all__ = [
    "Images",
    "images",
    "local_images",
    "read_embeddings",
    "read_ids",
    "text",
    "text_lines",
    "windows",
]
