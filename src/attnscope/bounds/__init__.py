"""Theorems on the smoothness of attention as numbers that say what they are."""

from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds.ball import on_ball
from attnscope.bounds.block_norms import BlockNorms
from attnscope.bounds.smoothness import smoothness

__all__ = ["BlockNorms", "Bound", "Bounds", "on_ball", "smoothness"]
