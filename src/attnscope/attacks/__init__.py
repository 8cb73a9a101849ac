"""Inputs that attention stretches most: searched, built, and split."""

from attnscope.attacks._starts import adversarial
from attnscope.attacks.finite import Attack, Comparison, compare
from attnscope.attacks.lengths import Curves, curves
from attnscope.attacks.projected import Attacked, pgd
from attnscope.attacks.search import WorstCase, worst_case
from attnscope.attacks.splitting import Split, split

__all__ = [
    "Attack",
    "Attacked",
    "Comparison",
    "Curves",
    "Split",
    "WorstCase",
    "adversarial",
    "compare",
    "curves",
    "pgd",
    "split",
    "worst_case",
]
