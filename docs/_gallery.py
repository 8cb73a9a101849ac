"""The gallery: one script per figure of the papers, written when the site is built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attnscope.studies import drawing
from attnscope.studies.papers import PaperFigure, find

QUICK = float(os.environ.get("ATTNSCOPE_GALLERY_SECONDS", "10"))
"""Figures that take longer, in seconds, are left to `attnscope reproduce`."""

HEADER = """Gallery
=======

Drawn when this site was built, each by `attnscope reproduce NAME` in its fast settings; `--full`
takes those of the papers. Figures that take longer than a few seconds are on the page
:doc:`../reproduce`, which lists all of them and says what a verdict means.
"""
SCRIPT = '''"""
{title}
{line}

{says} ({source}.) From the shell: ``attnscope reproduce {name}``.
"""

from attnscope.studies import run
from attnscope.studies.papers import find

figure = find()["{name}"]
table = run(figure, figure.fast).table
pictures = table.figures()

# %%
# What the rows say of the paper's statements:

for verdict in table.verdicts():
    print(f"{{verdict.outcome}}: {{verdict.statement}} ({{verdict.measured}})")
'''


def write_scripts(folder: Path) -> Path:
    """Write one script per quick figure; those that are there and the same keep their time."""
    folder.mkdir(exist_ok=True)
    wanted = {"GALLERY_HEADER.rst": HEADER}
    quick = [figure for figure in find().values() if figure.seconds[0] <= QUICK]
    wanted |= {f"plot_{figure.name}.py": _script(figure) for figure in quick}
    for path in folder.iterdir():
        if path.is_file() and path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return folder


def _script(figure: PaperFigure) -> str:
    title = figure.figure[:1].upper() + figure.figure[1:]
    return SCRIPT.format(
        title=title,
        line="=" * len(title),
        says=figure.says().replace("`", "``"),
        source=figure.source,
        name=figure.name,
    )


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures that a block left in `pictures`; each is shown once."""
    from sphinx_gallery.scrapers import figure_rst

    pictures = block_vars["example_globals"].pop("pictures", {})
    paths = []
    for picture, path in zip(pictures.values(), block_vars["image_path_iterator"], strict=False):
        Path(path).write_bytes(drawing.as_png(picture))
        paths.append(path)
    return str(figure_rst(paths, gallery_conf["src_dir"]))
