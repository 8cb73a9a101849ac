"""The explorer: one page on which a reader plays with the Transformer PDE.

Its mathematics is plain JavaScript, one module for each thing, in this folder; tests in a browser
compare it with the library.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from importlib import resources
from importlib.resources.abc import Traversable

from attnscope.report.explorer.bundle import bundled
from attnscope.report.explorer.presets import Preset, all_presets

__all__ = ["Preset", "all_presets", "page"]


def page(preset: str | None = None) -> str:
    """The whole page as HTML. It asks no network for anything.

    Args:
        preset: The name of the starting point that is shown first; None for the first of all.

    Returns:
        The text of the file.
    """
    known = all_presets()
    names = [one.name for one in known]
    first = names[0] if preset is None else preset
    if first not in names:
        raise ValueError(f"preset must be one of {', '.join(names)}, got {first!r}.")
    folder = resources.files(__name__)
    script = _harmless(bundled(_modules(folder), "main.js"))
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    data = {"first": first, "presets": [dataclasses.asdict(one) for one in known]}
    parts = {
        "version": _version(),
        "digest": digest,
        "style": (folder / "style.css").read_text(encoding="utf-8"),
        "presets": _harmless(json.dumps(data, ensure_ascii=False)),
        "script": script,
    }
    template = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _modules(folder: Traversable, under: str = "") -> dict[str, str]:
    """All modules of the folder and the folders in it, by their paths."""
    found: dict[str, str] = {}
    for one in folder.iterdir():
        if one.is_dir():
            found |= _modules(one, f"{under}{one.name}/")
        elif one.name.endswith(".js"):
            found[under + one.name] = one.read_text(encoding="utf-8")
    return found


def _harmless(text: str) -> str:
    """Text that cannot end the script element in which it stands."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


def _version() -> str:
    from attnscope import __version__

    return __version__
