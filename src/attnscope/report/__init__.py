"""A run becomes one HTML file that can be looked at anywhere: no network, no other file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from attnscope.files import write_atomically
from attnscope.report.collection import html_of_all, runs_in
from attnscope.report.notebook import fragment
from attnscope.report.page import html_of
from attnscope.report.run import Run, is_run, read
from attnscope.studies import Store, StoreError, Table

__all__ = ["FILE", "fragment", "of_folder", "of_table", "runs_in"]

FILE = "report.html"


def of_table(table: Table, path: Path) -> Path:
    """Write the page of rows in memory; figures are drawn for it.

    Args:
        table: What a run gave.
        path: The file to write, or a folder, which gets a `report.html`.

    Returns:
        Where the page is.
    """
    target = path / FILE if path.is_dir() else path
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, html_of(Run.of_table(table)))
    return target


def of_folder(folder: Path, drawn: Collection[str] | None = None) -> Path:
    """Write `report.html` into the folder of a run, finished or not, or of several runs.

    Args:
        folder: What a command wrote its results to.
        drawn: Names of files of the run, whose figures are taken as they are; None to draw them
            anew from the rows.

    Returns:
        Where the page is.

    Raises:
        ValueError: There is nothing of a run in the folder.
    """
    if folder.is_dir() and not is_run(folder) and runs_in(folder):
        write_atomically(folder / FILE, html_of_all(folder))
        return folder / FILE
    made = html_of(read(folder, drawn))
    try:
        with Store(folder) as store:
            store.publish({FILE: made})  # noted there, so that a run that replaces this removes it
    except StoreError:
        write_atomically(folder / FILE, made)
    return folder / FILE
