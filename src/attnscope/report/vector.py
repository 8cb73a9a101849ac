"""SVG files inside a page: nothing in them can run, their ids stay their own, and black and white
follow the theme.
"""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

from attnscope.report.markup import Markup, tag

NAMESPACE = "http://www.w3.org/2000/svg"
LINK = "http://www.w3.org/1999/xlink"
ALLOWED = {
    *("svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "rect", "circle", "style"),
    *("ellipse", "line", "polyline", "polygon", "image", "linearGradient", "stop", "pattern"),
}
READABLE = 0.75
"""How far a figure may shrink before the page scrolls it instead."""
LARGE = 1.6
"""And how far it may grow."""
LARGEST = 1_200_000
"""Characters of a figure that is put into the page as it is."""
PAPER = "paper"
"""The colour of the page in its style."""
BLACK = re.compile(r"#000000\b|#262626\b|\bblack\b")
WHITE = re.compile(r"#ffffff\b|\bwhite\b")


class NotSvg(ValueError):
    """This is no SVG that a page could show."""


def inlined(source: bytes, prefix: str, about: str) -> Markup:
    """A figure as part of a page.

    Args:
        source: An SVG file.
        prefix: Put before every id, as those of several figures would be the same.
        about: What the figure is, for those who do not see it.
    """
    if len(source) > LARGEST:
        raise NotSvg(f"a figure of {len(source) / 1e6:.1f} MB is too large for the page")
    if b"<!ENTITY" in source:
        raise NotSvg("a figure that defines entities is not shown")
    try:
        root = ElementTree.fromstring(source)
    except ElementTree.ParseError as error:
        raise NotSvg(f"a figure cannot be read ({error})") from error
    if root.tag != f"{{{NAMESPACE}}}svg":
        raise NotSvg("a figure is no SVG")
    _clean(root, prefix)
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    box = root.get("viewBox", "").split()
    if len(box) == 4:
        least, most = (factor * float(box[2]) for factor in (READABLE, LARGE))
        root.set("style", f"min-width:{least:.0f}px;max-width:{most:.0f}px")
    root.set("class", "drawn")
    root.set("role", "img")
    root.set("aria-label", about)
    ElementTree.register_namespace("", NAMESPACE)
    ElementTree.register_namespace("xlink", LINK)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def picture(source: bytes, about: str) -> Markup:
    """A PNG, for figures that are too large as SVG."""
    content = base64.b64encode(source).decode()
    return tag("img", src=f"data:image/png;base64,{content}", alt=about)


def _clean(element: ElementTree.Element, prefix: str) -> None:
    for child in list(element):
        name = child.tag.removeprefix(f"{{{NAMESPACE}}}") if isinstance(child.tag, str) else ""
        if name not in ALLOWED:
            element.remove(child)
        else:
            _clean(child, prefix)
    if element.tag == f"{{{NAMESPACE}}}style":
        # rules of a figure would reach the whole page; matplotlib's only sets line joins
        element.text = ""
    for key, value in list(element.attrib.items()):
        bare = key.rsplit("}", 1)[-1].lower()
        if bare.startswith("on") or (bare == "href" and not value.startswith(("#", "data:image/"))):
            del element.attrib[key]
        elif bare == "id":
            element.set(key, prefix + value)
        elif bare == "href" and value.startswith("#"):
            element.set(key, f"#{prefix}{value[1:]}")
        else:
            element.set(key, _themed(value.replace("url(#", f"url(#{prefix}")))


def _themed(value: str) -> str:
    return WHITE.sub(f"var(--{PAPER})", BLACK.sub("currentColor", value))
