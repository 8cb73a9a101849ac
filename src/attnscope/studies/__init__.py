"""Questions cut into cells: one driver, one store, one style of figures. One file is one study."""

import importlib
import inspect
import pkgutil

from attnscope.studies.cell import Cell
from attnscope.studies.driver import Outcome, run
from attnscope.studies.stop import Stop
from attnscope.studies.store import Store, StoreError
from attnscope.studies.study import Row, Sheet, Study, Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Stopped, Workbench

__all__ = [
    "Cell",
    "Outcome",
    "Row",
    "Sheet",
    "Stop",
    "Stopped",
    "Store",
    "StoreError",
    "Study",
    "Table",
    "Verdict",
    "Workbench",
    "find",
    "named",
    "run",
]


def find() -> dict[str, Study]:
    """Every study by its name: one file in this folder, or in `papers/`, is one study.

    >>> "measure" in find()
    True
    """
    found: dict[str, Study] = {}
    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        if info.name.rsplit(".", 1)[-1].startswith("_"):
            continue
        for study in _made_in(info.name):
            if study.name in found:
                raise ValueError(f"two studies are named {study.name!r}.")
            found[study.name] = study
    return dict(sorted(found.items()))


def named(name: str) -> Study | None:
    """The study of this name from its own file, the others left alone; None if there is none.

    >>> named("measure").name
    'measure'
    """
    if not name.isidentifier():
        return None
    for place in (name, f"{name}.study", f"papers.{name}"):
        module = f"{__name__}.{place}"
        try:
            made = _made_in(module)
        except ModuleNotFoundError as error:
            if not module.startswith(str(error.name)):  # something else is not installed
                raise
            continue
        for study in made:
            if study.name == name:
                return study
    return None


def _made_in(place: str) -> list[Study]:
    """The studies that a module defines."""
    module = importlib.import_module(place)
    return [
        made()
        for made in vars(module).values()
        if inspect.isclass(made)
        and issubclass(made, Study)
        and not inspect.isabstract(made)
        and made.__module__ == module.__name__
    ]
