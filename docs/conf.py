"""The documents as a site: `make docs` builds it into build/docs, to be read without a network."""

import importlib
import re
import sys
from importlib.metadata import version as installed
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from _gallery import write_scripts  # noqa: E402

from attnscope.report import explorer  # noqa: E402

project = "attnscope"
version = release = installed("attnscope")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_scripts"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "attnscope"
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure", "config.cache"]

# Mathematics is drawn by a script that lies beside the pages: formulas as SVG need no fonts.
_mathjax = Path(importlib.import_module("sphinx-mathjax-offline").__file__).parent
html_static_path = [str(_mathjax / "static/mathjax/tex-svg-full.js")]
mathjax_path = "tex-svg-full.js"

# Signatures name their arguments; shapes and types stand in the descriptions.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
default_role = "code"

# The figures of the papers, as `attnscope reproduce` draws them.
sphinx_gallery_conf = {
    "examples_dirs": [str(write_scripts(HERE / "_scripts"))],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "/plot_",
    "image_scrapers": ("_gallery.scrape",),
    "reset_modules": (),
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
}


def _mathematics(app, what, name, obj, options, lines):
    """Dollars in docstrings are mathematics, as in the pages."""
    text = re.sub(r"\$\$(.+?)\$\$", r"\n\n.. math:: \1\n\n", "\n".join(lines), flags=re.DOTALL)
    lines[:] = re.sub(
        r"\$([^$]+?)\$", lambda found: f":math:`{' '.join(found[1].split())}`", text
    ).splitlines()


def _explorer(app, problem):
    """The page that explorer.md leads to, beside the others."""
    if problem is None:
        page = explorer.page()
        Path(app.outdir, "tokens-in-motion.html").write_text(page, encoding="utf-8")


def setup(app):
    app.connect("build-finished", _explorer)
    app.connect("autodoc-process-docstring", _mathematics, priority=100)
