"""A compact Transformer made of layers, and invertible stacks of attention."""

from attnscope.nets import invertible
from attnscope.nets.config import Config
from attnscope.nets.files import describe, load, save, shipped
from attnscope.nets.invertible import Invertible
from attnscope.nets.transformer import Transformer

__all__ = [
    "Config",
    "Invertible",
    "Transformer",
    "describe",
    "invertible",
    "load",
    "save",
    "shipped",
]
