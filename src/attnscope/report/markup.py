"""HTML and SVG from Python, in which every text is escaped unless it is markup already."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable
from typing import Any

VOID = {"br", "hr", "input", "meta", "img"}
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\ud800-\udfff]")
"""What neither HTML nor UTF-8 can hold: shown by number."""


class Markup(str):
    """Text that is markup already; only `tag`, `joined` and `vector.inlined` make it."""


Child = Any
"""A string (escaped), markup (kept), None (nothing), or several of them."""


def escaped(text: object) -> Markup:
    """A text as HTML shows it, quotes included, so that it may stand in an attribute."""
    plain = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(text))
    return Markup(html.escape(plain, quote=True))


def tag(name: str, /, *children: Child, **attributes: Any) -> Markup:
    """`tag("p", "a < b", class_="note")` is `<p class="note">a &lt; b</p>`.

    An attribute that is None or False is left out, True stands alone; `_` becomes `-`.

    >>> tag("a", "<b>", href="#x", hidden=True)
    '<a href="#x" hidden>&lt;b&gt;</a>'
    """
    told = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{joined(children)}</{name}>")


def joined(children: Child) -> Markup:
    """Several children, one after the other."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, Iterable) and not isinstance(children, str):
        return Markup("".join(joined(child) for child in children))
    return escaped(children)


def data(name: str, content: Any) -> Markup:
    """Data for the script of the page: JSON that no text in it can end.

    >>> data("d", ["</script>", float("nan")])
    '<script type="application/json" id="d">["\\\\u003c/script\\\\u003e","nan"]</script>'
    """
    text = json.dumps(_plain(content), allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json" id="{escaped(name)}">{text}</script>')


def _plain(content: Any) -> Any:
    """NaN and infinity, which JSON does not know, as words."""
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return number(content)
    return content


def number(value: float | None, digits: int = 4) -> str:
    """A number for people: four digits, words for what is none.

    >>> number(1234.5678), number(1.2e-7), number(float("nan")), number(None)
    ('1235', '1.2e-07', 'not a number', 'not there')
    """
    if value is None:
        return "not there"
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinity"
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return (
        f"{value:.{max(digits, len(str(int(abs(value)))))}g}"
        if abs(value) < 1e6
        else f"{value:.{digits - 1}e}"
    )
