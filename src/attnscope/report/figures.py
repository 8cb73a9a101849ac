"""The figures of a run inside its page, as vectors."""

from __future__ import annotations

from collections.abc import Collection

from attnscope.report.markup import Markup, tag
from attnscope.report.run import Run
from attnscope.report.vector import LARGEST, NotSvg, inlined, picture
from attnscope.studies import Table, drawing


def figures(run: Run, without: Collection[str], prefix: str, missing: list[str]) -> list[Markup]:
    """Every figure but those `without`: the files of the run, or drawn from its rows.

    Sentences on figures that cannot be shown are added to `missing`.
    """
    files = dict(run.figures)
    if not files and run.table is not None:
        if not drawing.available():
            missing.append('Figures need matplotlib: pip install "attnscope[plot]".')
            return []
        files = _drawn(run.table, without)
    made = []
    for name in dict.fromkeys(file.rsplit(".", 1)[0] for file in files):
        if name in without:
            continue
        about = name.replace("-", " ").replace("_", " ")
        try:
            shown = _shown(name, files, prefix, about)
        except NotSvg as error:
            missing.append(f"The figure {about!r} is not shown: {error}.")
            continue
        made.append(tag("figure", tag("figcaption", about), tag("div", shown, class_="scroll")))
    return made


def _drawn(table: Table, without: Collection[str]) -> dict[str, bytes]:
    files = {}
    for name, figure in table.figures().items():
        if name not in without:
            files[f"{name}.svg"] = drawing.as_svg(figure)
            if len(files[f"{name}.svg"]) > LARGEST:
                files[f"{name}.png"] = drawing.as_png(figure)
    return files


def _shown(name: str, files: dict[str, bytes], prefix: str, about: str) -> Markup:
    """As a vector; where there is none that fits, as a picture of dots."""
    dots = files.get(f"{name}.png")
    try:
        return inlined(files.get(f"{name}.svg", b""), f"{prefix}{name}-", about)
    except NotSvg:
        if dots is None or len(dots) > LARGEST:
            raise
        return picture(dots, about)
