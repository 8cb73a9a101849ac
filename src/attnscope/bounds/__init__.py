"""Theorems on the smoothness of attention as numbers that say what they are."""

from attnscope.bounds import constructions
from attnscope.bounds._bound import Bound, Bounds
from attnscope.bounds.asking import bound_of, lipschitz
from attnscope.bounds.at import At, Blocks
from attnscope.bounds.head_norms import LayerNorms, Parts, PerHead
from attnscope.bounds.large_radius import Limit, large_radius_limit
from attnscope.bounds.near._checks import NoBound
from attnscope.bounds.near.along import Followed, followed
from attnscope.bounds.near.queries import (
    Sensitivity,
    TokensOverBall,
    bend,
    remainder,
    sensitivity,
    tokens_over_ball,
)
from attnscope.bounds.norm_layers import (
    layer_norm_radius,
    norm_lipschitz,
    rms_norm_radius,
    through_norm,
)
from attnscope.bounds.places import Anywhere, Flow, Normed, OnBall, Reach, TwoFlows
from attnscope.bounds.queries import check_covered, covered, on_ball, smoothness
from attnscope.bounds.registry import Theorem, theorem, theorems
from attnscope.bounds.smooth.block_norms import BlockNorms
from attnscope.bounds.smooth.tied import tied_reads

__all__ = [
    "Anywhere",
    "At",
    "BlockNorms",
    "Blocks",
    "Bound",
    "Bounds",
    "Flow",
    "Followed",
    "LayerNorms",
    "Limit",
    "NoBound",
    "Normed",
    "OnBall",
    "Parts",
    "PerHead",
    "Reach",
    "Sensitivity",
    "Theorem",
    "TokensOverBall",
    "TwoFlows",
    "bend",
    "bound_of",
    "check_covered",
    "constructions",
    "covered",
    "followed",
    "large_radius_limit",
    "layer_norm_radius",
    "lipschitz",
    "norm_lipschitz",
    "on_ball",
    "remainder",
    "rms_norm_radius",
    "sensitivity",
    "smoothness",
    "theorem",
    "theorems",
    "through_norm",
    "tied_reads",
    "tokens_over_ball",
]
