"""The papers' figures: one file is one figure, with its settings, its rows, its picture and what
the rows say about the paper's statement.
"""

from attnscope.studies import find as _studies
from attnscope.studies.papers._figure import PaperFigure

__all__ = ["PaperFigure", "find"]


def find() -> dict[str, PaperFigure]:
    """Every figure of the papers by its name.

    >>> find()["line"].paper
    'castin25'
    """
    return {name: study for name, study in _studies().items() if isinstance(study, PaperFigure)}
