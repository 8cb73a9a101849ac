"""The papers' figures: one file is one figure, with its settings, its rows, its picture and what
the rows say about the paper's statement.
"""

from attnscope.studies import find as _studies
from attnscope.studies.papers._figure import TOPICS, VERDICT_COLUMNS, Missing, PaperFigure, told

__all__ = ["TOPICS", "VERDICT_COLUMNS", "Missing", "PaperFigure", "find", "told"]


def find() -> dict[str, PaperFigure]:
    """Every figure of the papers by its name, topic by topic.

    >>> find()["line"].paper
    'castin25'
    """
    found = [study for study in _studies().values() if isinstance(study, PaperFigure)]
    topics = list(TOPICS)
    found.sort(key=lambda figure: (topics.index(figure.topic), figure.name))
    return {figure.name: figure for figure in found}
