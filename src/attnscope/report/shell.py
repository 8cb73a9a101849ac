"""The shell of a page: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from attnscope.report.markup import Markup, tag

FOOT = "Written by attnscope. This file is whole: it asks no network for anything."


def whole(title: str, body: Sequence[Markup]) -> str:
    """A page: head with style and script, the given sections, and nothing from elsewhere.

    The policy lets only this script run, by its hash, and nothing be loaded: even text that was
    taken for markup could do no harm.
    """
    script = asset(".js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline';"
        f" script-src 'sha256-{digest}'"
    )
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="generator", content="attnscope"),
        tag("title", title),
        Markup(f"<style>{asset('.css')}</style>"),
    ]
    toggle = tag("button", "Dark", id="theme", type="button")
    main = tag("main", tag("header", tag("h1", title), toggle), body)
    tip = tag("div", id="tip", role="status", hidden=True)
    end = Markup(f"<script>{script}</script>")
    foot = tag("footer", FOOT)
    made = tag(
        "html", tag("head", head), tag("body", main, foot, tip, end, class_="attnscope"), lang="en"
    )
    return f"<!doctype html>\n{made}\n"


def asset(suffix: str) -> str:
    """All files of this kind that come with the page, one after the other."""
    folder = resources.files("attnscope.report") / "assets"
    files = {one.name: one for one in folder.iterdir() if one.name.endswith(suffix)}
    return "\n".join(files[name].read_text(encoding="utf-8") for name in sorted(files))
