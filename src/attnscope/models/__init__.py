"""Real networks: one file in this folder is one model family, found by its file."""

from attnscope.models._base import Model, ModelNotice
from attnscope.models._cross import CrossAttention, cross_attentions
from attnscope.models._families import families
from attnscope.models._jacobian import (
    head_jacobian,
    heads_jacobian,
    heads_values,
    part_jacobian,
)
from attnscope.models._load import load
from attnscope.models._monitor import Monitor, lightning_callback, trainer_callback
from attnscope.models._moves import MEMORY, TooLarge
from attnscope.models._parts import PARTS, Part
from attnscope.models._perturbation import Duplication, Perturbation, Step
from attnscope.models._pixels import PREPROCESSING, fitted, processing
from attnscope.models._quiet import quiet
from attnscope.models._spans import (
    NAMED_PLACES,
    Place,
    Span,
    at_stream,
    pieces_of,
    place_number,
    streams,
)
from attnscope.models._spelled import spelled
from attnscope.models._table import ARCHITECTURES, COLUMNS, table
from attnscope.models._tapping import Tap
from attnscope.models.door import register_attention

__all__ = [
    "CrossAttention",
    "ARCHITECTURES",
    "COLUMNS",
    "MEMORY",
    "NAMED_PLACES",
    "PARTS",
    "PREPROCESSING",
    "Duplication",
    "Model",
    "ModelNotice",
    "Monitor",
    "Part",
    "Perturbation",
    "Place",
    "Span",
    "Step",
    "Tap",
    "TooLarge",
    "at_stream",
    "cross_attentions",
    "families",
    "fitted",
    "head_jacobian",
    "heads_jacobian",
    "heads_values",
    "lightning_callback",
    "load",
    "part_jacobian",
    "pieces_of",
    "place_number",
    "processing",
    "quiet",
    "spelled",
    "streams",
    "table",
    "register_attention",
    "trainer_callback",
]
