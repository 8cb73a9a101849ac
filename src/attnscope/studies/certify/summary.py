"""What a run says: accuracies at each eps, and what attention has to do with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from attnscope.studies.certify.rows import CertifyConfig, HeadRow, NetworkRow, Row
from attnscope.studies.certify.smoothing import SmoothSummary, sentences
from attnscope.studies.study import Sheet

ALIVE = 0.05
"""Below this norm of A in every head, attention hardly looks at what tokens say."""
NAMES = {"network": "this network", "control": "the control"}
MOST_SHOWN = 5


@final
@dataclass(frozen=True)
class Line:
    """Shares of the images at one eps: `certified` is a proved lower bound of the robust accuracy,
    `attacked` an upper bound.
    """

    eps: float
    certified: float
    attacked: float
    methods: dict[str, int]
    certified_without: float | None = None
    """With every A set to 0; None for a network without attention."""


@final
@dataclass(frozen=True)
class Summary:
    """What the rows of one network say."""

    images: int
    clean: float
    lines: tuple[Line, ...]
    radius: float
    """Mean proved radius over all images, 0 for those that are misread."""
    certify_seconds: float
    attack_seconds: float
    blind: int
    unsound: int
    accuracy_without: float | None
    """Clean accuracy with every A set to 0; None for a network without attention."""


def summarise(rows: Sequence[Row]) -> Summary:
    """Shares over all images of these rows, which belong to one network."""
    first = {row.image: row for row in rows}.values()
    count = len(first)
    lines = []
    for eps in sorted({row.eps for row in rows}):
        here = [row for row in rows if row.eps == eps]
        off = [bool(row.content_off_certified) for row in here if row.content_off is not None]
        lines.append(
            Line(
                eps=eps,
                certified=sum(row.certified for row in here) / count,
                attacked=sum(row.broken is False for row in here) / count,
                methods=dict(Counter(row.method for row in here if row.certified)),
                certified_without=sum(off) / len(off) if off else None,
            )
        )
    right = [row.content_off == row.label for row in first if row.content_off is not None]
    return Summary(
        images=count,
        clean=sum(row.label == row.predicted for row in first) / count,
        lines=tuple(lines),
        radius=sum(row.radius for row in first) / count,
        certify_seconds=sum(row.certify_seconds for row in first) / count,
        attack_seconds=sum(row.attack_seconds for row in first) / count,
        blind=sum(bool(row.blind) for row in first),
        unsound=sum(row.unsound for row in rows),
        accuracy_without=sum(right) / len(right) if right else None,
    )


def summaries(rows: Sequence[Row]) -> dict[str, Summary]:
    """The summary of the network and, where it was reached, of its control."""
    parts = {name: [row for row in rows if row.network == name] for name in NAMES}
    return {name: summarise(part) for name, part in parts.items() if part}


def norms_of(heads: Sequence[HeadRow]) -> list[list[float]]:
    """The norm of A of each head of the network, layer by layer."""
    mine = [row for row in heads if row.network == "network"]
    return [
        [row.norm for row in mine if row.layer == layer]
        for layer in sorted({row.layer for row in mine})
    ]


def sheets(
    rows: Sequence[Row],
    networks: Sequence[NetworkRow],
    heads: Sequence[HeadRow],
    config: CertifyConfig,
    smooth: dict[str, SmoothSummary],
) -> list[Sheet]:
    """Accuracies at each eps, then what attention has to do with them, then times."""
    made = summaries(rows)
    if "network" not in made and "network" not in smooth:
        return []
    names = eps_names(config)
    lines: list[tuple[str, ...]] = []
    for place, eps in enumerate(sorted(config.eps)):
        here = [*_proved(made, place), *_smooth(smooth, place)]
        lines += [
            (names[eps] if number == 0 else "", *entries) for number, entries in enumerate(here)
        ]
    images = made["network"].images if "network" in made else smooth["network"].images
    said = _sentences(made, norms_of(heads)) if "network" in made else []
    return [
        Sheet(
            title(networks, images),
            ("eps", "network", "clean", "certified", "PGD", "certified by"),
            lines,
            "\n".join(said + sentences(smooth)),
        )
    ]


def _proved(made: dict[str, Summary], place: int) -> list[tuple[str, ...]]:
    """The lines of the network and its control at one eps."""
    lines = []
    for name, summary in made.items():
        line = summary.lines[place]
        ways = sorted(line.methods.items(), key=lambda item: -item[1])
        shares = map(_percent, (summary.clean, line.certified, line.attacked))
        lines.append((NAMES[name], *shares, ", ".join(f"{way} {count}" for way, count in ways)))
        if name == "network" and summary.accuracy_without is not None:
            off = (summary.accuracy_without, line.certified_without or 0.0)
            lines.append(("A set to 0", *map(_percent, off), "", ""))
    return lines


def _smooth(made: dict[str, SmoothSummary], place: int) -> list[tuple[str, ...]]:
    """The same of the smoothed networks: probable, and said to be."""
    return [
        (
            f"{NAMES[name]}, smoothed",
            _percent(one.clean),
            _percent(one.certified[place]),
            "",
            f"smoothing {round(one.images * one.certified[place])} (probable)",
        )
        for name, one in made.items()
    ]


def eps_names(config: CertifyConfig) -> dict[float, str]:
    """How tables write each eps."""
    if len(config.eps_names) != len(config.eps):
        return {eps: f"{eps:.4g}" for eps in config.eps}
    return dict(zip(config.eps, config.eps_names, strict=True))


def title(networks: Sequence[NetworkRow], images: int) -> str:
    if not networks:
        return f"{images} images"
    about = networks[0]
    made = about.attention
    if about.heads:
        made += f" attention, {about.heads} heads" + f", depth {about.depth}" * (about.depth > 0)
    return f"{made}: {images} images of {about.images}"


def _sentences(made: dict[str, Summary], norms: list[list[float]]) -> list[str]:
    network, control = made["network"], made.get("control")
    said = []
    if network.accuracy_without is not None and norms:
        lost = network.clean - network.accuracy_without
        dead = max(max(layer) for layer in norms) < ALIVE
        for number, layer in enumerate(norms):
            said.append(
                f"Norm of A in attention layer {number}, head by head:"
                f" {', '.join(f'{norm:.3g}' for norm in layer)}."
            )
        said.append(
            f"Setting A to 0 {'costs' if lost >= 0 else 'gains'} {abs(100 * lost):.1f} points of"
            " clean accuracy."
            + " Attention is dead: it looks at places only, so these certificates say nothing about"
            " content attention." * dead
        )
    radius = f"{network.radius:.4f}" + (f" (control {control.radius:.4f})" if control else "")
    said.append(f"Average certified radius {radius}, 0 where the image is misread.")
    said.append(
        f"Time per image: {1000 * network.certify_seconds:.0f} ms for the certificates at every eps"
        f" and the radius, {1000 * network.attack_seconds:.0f} ms for the attacks."
    )
    said.append(
        "certified, certified radius: proved. PGD: the share that the attack did not break, so an"
        " upper bound of what can be proved."
    )
    return said


def broken_certificates(rows: Sequence[Row]) -> str:
    """A sentence when an attack broke what was proved, else nothing."""
    unsound = [row for row in rows if row.unsound]
    if not unsound:
        return ""
    places = {
        f"{row.network} image {row.image} at {row.radius if row.broken_at_radius else row.eps:.4g}"
        for row in unsound
    }
    return (
        f"the attack broke {len(unsound)} certificates ({', '.join(sorted(places)[:MOST_SHOWN])})."
        " This is a bug in attnscope: please report it together with certificates.jsonl and the"
        " checkpoint."
    )


def on_the_control(networks: Sequence[NetworkRow]) -> str:
    """A sentence when there is no control, or when it was not, or not certainly, trained for as
    long on the same images.
    """
    if len(networks) < 2:
        return (
            "No control: the same network, trained with A = 0 for as long, would say what content"
            " attention is worth."
        )
    ours, others = networks[0], networks[1]
    if not any(kept.minutes or kept.steps for kept in (ours, others)):
        return "Nothing says how long network and control were trained."
    told = ", ".join(
        f"{name} {getattr(ours, name)} against {getattr(others, name)}"
        for name in ("data", "minutes", "steps", "finished")
        if getattr(ours, name) != getattr(others, name)
    )
    return f"The control was trained otherwise: {told}." if told else ""


def on_blindness(rows: Sequence[Row]) -> str:
    """A sentence when the attack was a random search for some images of the network."""
    blind = {row.image for row in rows if row.network == "network" and row.blind}
    if not blind:
        return ""
    return f"The attack saw no gradient at {len(blind)} images: PGD says little about them."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
