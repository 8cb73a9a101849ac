"""A text whose tokens are tinted by their share of something, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnscope.report.markup import Markup, data, tag

TINTS = ("blue", "red")
STRONGEST = 50
"""Per cent of the tint at the largest share: text on it stays readable."""


Shares = Sequence[Sequence[float]]
"""What each token has of one thing or two, in one layer."""


def tinted_text(
    texts: Sequence[str],
    layers: Mapping[int, Shares],
    begin: int,
    names: Sequence[str],
    told: Sequence[str],
    place: str,
) -> Markup:
    """The text, tinted by each share, with a choice of the layer where there are several.

    Args:
        texts: What each token reads.
        layers: The shares by layer.
        begin: The layer that is shown first.
        names: What the shares are, as headings.
        told: What a token does with them: `token 3 "cat" <told> 12.0 %`.
        place: An id for the page.
    """
    choice = tag(
        "label",
        "Layer ",
        tag(
            "select",
            [tag("option", layer, value=layer, selected=layer == begin) for layer in layers],
            data_tokens=place,
        ),
    )
    held = {layer: [_rounded(part) for part in shares] for layer, shares in layers.items()}
    said = [[f"token {i} “{text}” {one}" for i, text in enumerate(texts)] for one in told]
    return tag(
        "div",
        choice if len(layers) > 1 else None,
        [
            (
                tag("h3", name),
                tag(
                    "p",
                    _spans(texts, layers[begin][which], said[which], TINTS[which]),
                    class_="tokens",
                    id=f"{place}-{which}",
                    data_roving="line",
                    data_tint=TINTS[which],
                ),
            )
            for which, name in enumerate(names)
        ],
        data(f"{place}-shares", {"layers": held, "told": said, "strongest": STRONGEST}),
    )


def _spans(
    texts: Sequence[str], shares: Sequence[float], told: Sequence[str], tint: str
) -> list[Markup | str]:
    largest = max((share for share in shares if share == share), default=0.0) or 1.0
    # tokenizers that keep blanks put them into the tokens; for others words are set apart here
    blanks = any(text[:1].isspace() for text in texts)
    made: list[Markup | str] = []
    for number, (text, share) in enumerate(zip(texts, shares, strict=True)):
        if made and not blanks and not text.startswith("##"):
            made.append(" ")
        strength = STRONGEST * (share / largest) ** 0.5 if share == share else 0.0
        made.append(
            tag(
                "span",
                text.removeprefix("##") or "∅",
                class_="mark",
                role="img",
                tabindex=-1,
                aria_label=f"{told[number]} {100 * share:.1f} %",
                style=f"background:color-mix(in srgb,var(--{tint}) {strength:.0f}%,transparent)",
                data_row=0,
                data_column=number,
            )
        )
    return made


def _rounded(shares: Sequence[float]) -> list[float]:
    return [round(share, 5) for share in shares]
