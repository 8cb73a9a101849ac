"""Theorems on the smoothness of attention as numbers that say what they are."""

from attnscope.bounds import constructions
from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds.ball import on_ball
from attnscope.bounds.block_norms import BlockNorms
from attnscope.bounds.large_radius import Limit, large_radius_limit
from attnscope.bounds.near._checks import NoBound
from attnscope.bounds.near.queries import (
    Sensitivity,
    TokensOverBall,
    remainder,
    sensitivity,
    tokens_over_ball,
)
from attnscope.bounds.norm_layers import layer_norm_radius, rms_norm_radius
from attnscope.bounds.registry import Theorem, theorem, theorems
from attnscope.bounds.smoothness import smoothness

__all__ = [
    "BlockNorms",
    "Bound",
    "Bounds",
    "Limit",
    "NoBound",
    "Sensitivity",
    "Theorem",
    "TokensOverBall",
    "constructions",
    "large_radius_limit",
    "layer_norm_radius",
    "on_ball",
    "remainder",
    "rms_norm_radius",
    "sensitivity",
    "smoothness",
    "theorem",
    "theorems",
    "tokens_over_ball",
]
