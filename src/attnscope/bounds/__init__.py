"""Theorems on the smoothness of attention as numbers that say what they are."""

from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds.ball import on_ball
from attnscope.bounds.smoothness import smoothness

__all__ = ["Bound", "Bounds", "on_ball", "smoothness"]
