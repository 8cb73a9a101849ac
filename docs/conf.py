"""The site of the documents: `make docs` builds it into build/docs."""

from importlib.metadata import version as installed

project = "attnscope"
version = release = installed("attnscope")
extensions = ["myst_parser", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "attnscope"
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]
