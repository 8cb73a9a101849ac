"""The tables of `attnscope certify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from attnscope.certification.report import Summary

ALIVE = 0.05
"""Below this norm of A in every head, attention hardly looks at what tokens say."""


@final
@dataclass(frozen=True)
class Content:
    """What is left of attention: the norm of A of each head, layer by layer, and the accuracy when
    every A is set to 0.
    """

    norms: tuple[tuple[float, ...], ...]
    accuracy_without: float


def show(
    console: Console,
    title: str,
    radii: dict[float, str],
    summaries: dict[str, Summary],
    content: Content | None,
) -> None:
    """Accuracies at each eps, then what attention has to do with them, then times."""
    console.print(_accuracies(title, radii, summaries, content))
    for line in _sentences(summaries, content):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _accuracies(
    title: str, radii: dict[float, str], summaries: dict[str, Summary], content: Content | None
) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), title=title)
    for name in ("eps", "network", "clean", "certified", "PGD", "certified by"):
        table.add_column(
            name,
            justify="left" if name in ("eps", "network", "certified by") else "right",
            no_wrap=name != "certified by",
        )
    names = {"network": "this network", "control": "no attention"}
    for place, eps in enumerate(radii):
        for name, summary in summaries.items():
            line = summary.lines[place]
            ways = ", ".join(
                f"{way} {count}"
                for way, count in sorted(line.methods.items(), key=lambda item: -item[1])
            )
            cells = (_percent(summary.clean), _percent(line.certified), _percent(line.attacked))
            table.add_row(radii[eps] if name == "network" else "", names[name], *cells, ways)
        table.add_section()
    if content is not None:
        table.add_row("", "A set to 0", _percent(content.accuracy_without))
    return table


def _sentences(summaries: dict[str, Summary], content: Content | None) -> list[str]:
    network, control = summaries["network"], summaries.get("control")
    made = []
    if content is not None:
        lost = network.clean - content.accuracy_without
        dead = max(max(norms) for norms in content.norms) < ALIVE
        for layer, norms in enumerate(content.norms):
            made.append(
                f"Norm of A in attention layer {layer}, head by head:"
                f" {', '.join(f'{norm:.3g}' for norm in norms)}."
            )
        made.append(
            f"Setting A to 0 {'costs' if lost >= 0 else 'gains'} {abs(100 * lost):.1f} points of"
            " clean accuracy."
            + " Attention is dead: it looks at places only, so these certificates say nothing about"
            " content attention." * dead
        )
    radius = f"{network.radius:.4f}" + (f" (control {control.radius:.4f})" if control else "")
    made.append(f"Average certified radius {radius}, 0 where the image is misread.")
    made.append(
        f"Time per image: {1000 * network.certify_seconds:.0f} ms for the certificates at every eps"
        f" and the radius, {1000 * network.attack_seconds:.0f} ms for the attacks."
    )
    if network.blind:
        made.append(
            f"The attack saw no gradient at {network.blind} images: PGD says little about them."
        )
    made.append(
        "certified, certified radius: proved. PGD: the share that the attack did not break, so an"
        " upper bound of what can be proved."
    )
    return made


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
