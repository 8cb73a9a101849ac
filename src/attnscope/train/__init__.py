"""Training of networks that can be certified."""

from attnscope.train.fit import Look, Progress, fit, look
from attnscope.train.losses import LOSSES, Graded, graded
from attnscope.train.plan import Plan
from attnscope.train.training import Seen, Training

__all__ = ["LOSSES", "Graded", "Look", "Plan", "Progress", "Seen", "Training", "fit", "graded", "look"]
