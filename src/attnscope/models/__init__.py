"""Real networks: one file in this folder is one model family, found by its file."""

from attnscope.models._base import Model, ModelNotice
from attnscope.models._families import families
from attnscope.models._jacobian import part_jacobian
from attnscope.models._load import load
from attnscope.models._parts import PARTS, Part
from attnscope.models._perturbation import Duplication, Perturbation, Step
from attnscope.models._table import ARCHITECTURES, COLUMNS, table
from attnscope.models._tapping import Tap
from attnscope.models.door import register_attention

__all__ = [
    "ARCHITECTURES",
    "COLUMNS",
    "PARTS",
    "Duplication",
    "Model",
    "ModelNotice",
    "Part",
    "Perturbation",
    "Step",
    "Tap",
    "families",
    "load",
    "part_jacobian",
    "table",
    "register_attention",
]
