"""Training of networks that can be certified."""

from attnscope.training.fitting import Look, Progress, fit, look
from attnscope.training.losses import LOSSES, Graded, graded
from attnscope.training.recipe import Recipe
from attnscope.training.training import Seen, Training

__all__ = [
    "LOSSES",
    "Graded",
    "Look",
    "Recipe",
    "Progress",
    "Seen",
    "Training",
    "fit",
    "graded",
    "look",
]
