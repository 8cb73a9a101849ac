"""`View`: what a page shows of one study; the plain one serves every study."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import ClassVar

from attnscope.report import views
from attnscope.report.content import Block, Number, Opening, Standing
from attnscope.studies import Study, Table


class View:
    """How the page of a study begins, and what it shows beyond tables and figures.

    A study that has more to show than this plain view has a file in `views/` with a subclass; the
    file is named as that of the study.
    """

    kind: ClassVar[type] = Study
    """The studies that this view is for."""
    instead: ClassVar[tuple[str, ...]] = ()
    """Names of the study's figures that the blocks of this view stand for."""

    sheets: ClassVar[bool] = True
    """Whether what the command prints stands on the page, too: not where verdicts are all of it."""

    def opening(self, table: Table) -> Opening:
        """From what every study has: titles of its tables, verdicts, rows."""
        words = [sheet.title for sheet in table.summary() if sheet.title]
        numbers = [
            Number("rows", str(sum(len(table[kind]) for kind in table.kinds)), Standing.COUNTED)
        ]
        verdicts = table.verdicts()
        if verdicts:
            held = sum(verdict.holds is True for verdict in verdicts)
            numbers = [
                Number("statements that hold", f"{held} of {len(verdicts)}", Standing.COUNTED)
            ]
        return Opening(table.study.name, words, numbers)

    def blocks(self, table: Table) -> list[Block]:
        """What to look at first."""
        return []


def find(study: Study) -> View:
    """The view of a study: that of the nearest kind.

    >>> from attnscope.studies.measure import Measure
    >>> type(find(Measure())).__name__
    'MeasureView'
    """
    made: list[type[View]] = [View]
    # Every view imports its study: only those whose name a class of this one comes from are read.
    rooms = {room for base in type(study).__mro__ for room in base.__module__.split(".")}
    for info in pkgutil.iter_modules(views.__path__):
        if info.name not in rooms:
            continue
        module = importlib.import_module(f"{views.__name__}.{info.name}")
        found = [one for one in vars(module).values() if inspect.isclass(one)]
        made += [one for one in found if issubclass(one, View)]
    fitting = [one for one in made if isinstance(study, one.kind)]
    return max(fitting, key=lambda view: len(view.kind.__mro__))()
