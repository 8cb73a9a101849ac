"""The one style of all figures: readable, safe for colour-blind readers, SVG and PNG."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Eight colours that stay apart under every common colour blindness (Okabe and Ito)."""
BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK, GREY = COLOURS
MAP = "viridis"
"""For numbers: even in lightness, so that it also survives a grey printer."""
LONGEST_NAME = 48

RULES: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "image.cmap": MAP,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "attnscope",  # the same figure gives the same file
}


def available() -> bool:
    """Whether figures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def style() -> Iterator[None]:
    """Figures made inside look like all others; the settings of the user are left alone."""
    if not available():
        raise ImportError('figures need matplotlib: pip install "attnscope[plot]".')
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**RULES, "axes.prop_cycle": cycler(color=COLOURS)}):
        yield


def new_figure(width: float, height: float) -> Any:
    """An empty `matplotlib.figure.Figure` of this size in inches, without any window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def safe(name: object, longest: int = LONGEST_NAME) -> str:
    """A name as a title can carry it: one line, not too long, `$` no sign of mathematics."""
    text = " ".join(str(name).split())
    if len(text) > longest:
        text = text[: longest // 2] + "..." + text[-(longest - longest // 2 - 3) :]
    return text.replace("\\", "/").replace("$", r"\$")


def heading(
    model: str | None = None,
    text: str | None = None,
    variant: str | None = None,
    n: str | int | None = None,
    about: str | None = None,
) -> str:
    """A title that says what was measured: model, text, variant, number of tokens."""
    known = [
        None if model is None else safe(Path(model).name or model),
        None if text is None else safe(Path(text).name or text),
        None if variant is None else safe(variant),
        None if n is None else f"n = {safe(n)}",
    ]
    first = ", ".join(part for part in known if part)
    return "\n".join(part for part in (first, None if about is None else safe(about, 90)) if part)


def as_svg(figure: Any) -> bytes:
    return _saved(figure, "svg", metadata={"Date": None})


def as_png(figure: Any) -> bytes:
    return _saved(figure, "png", dpi=150, metadata={"Software": None})


def lay_out(figure: Any) -> None:
    """Find the layout once and keep it: what is drawn later only draws."""
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)


def _saved(figure: Any, form: str, **options: Any) -> bytes:
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    image = io.BytesIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks
        if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
            lay_out(figure)  # once, not for every format
        figure.savefig(image, format=form, **options)
    return image.getvalue()
