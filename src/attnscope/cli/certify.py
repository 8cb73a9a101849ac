"""`attnscope certify CHECKPOINT`: certified accuracy of a vision transformer, with the attack and
the controls beside it.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import nn

from attnscope.certification.report import Plan, Row, accuracy, evaluate, summarise
from attnscope.certification.report_nearest import nearest
from attnscope.cli._certify_tables import Content, show
from attnscope.data.pictures import SPLITS, Images
from attnscope.files import write_atomically
from attnscope.measure.store import Store, run_record
from attnscope.nets import Transformer, describe, load, shipped


def command(
    checkpoint: str | None = typer.Argument(
        None,
        help="Folder of a trained network (default: the digits network that ships with attnscope).",
    ),
    data: str | None = typer.Option(
        None,
        help=(
            "digits, cifar10, svhn, a folder of class-named pictures or a .npz file (default: what"
            " the network was trained on)."
        ),
    ),
    split: str = typer.Option("test", help="Which images: train, test or all."),
    images: int = typer.Option(100, min=1, help="How many images, from the first on."),
    eps: str = typer.Option(
        "36/255,72/255,108/255",
        help="Radii in l2 of pixels in [0, 1]: numbers or fractions, separated by commas.",
    ),
    control: str | None = typer.Option(
        None,
        help="Folder of the no-attention control (default: the one beside the checkpoint, if any).",
    ),
    steps: int = typer.Option(100, min=1, help="Steps of the attack."),
    restarts: int = typer.Option(
        5, min=1, help="Starts of the attack, the image itself and random ones."
    ),
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads (default: torch's own choice)."
    ),
    seed: int = typer.Option(0, min=0, help="Seed of the attack."),
    out: str | None = typer.Option(None, help="Folder for results (default: certify-CHECKPOINT)."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace results that are already in the folder."
    ),
) -> None:
    """How far can an image be changed before this network may read it otherwise? Proved, and
    attacked.

    Certifies images against every l2 perturbation up to eps, next to a PGD attack, the norms of A,
    the accuracy with A set to 0 and a control without attention. Leaves tables, figures,
    certificates.jsonl and certificates.csv. Ctrl-C keeps what was certified. A certificate that the
    attack breaks would be a bug and ends with exit code 1.
    """
    options = dict(locals())
    console = Console()
    if threads is not None:
        torch.set_num_threads(threads)
    radii = parsed_eps(eps)
    with console.status("Loading ..."):
        plans, remark = _plans(options, radii)
    folder = Path(
        out
        or "certify-"
        + re.sub(r"[^\w.-]+", "-", Path(checkpoint).resolve().name if checkpoint else "digits")
    )
    begun = time.monotonic()
    with Store(folder, overwrite, "certificates") as store:
        finished = _certify(console, plans, store)
    if not store.rows:
        raise KeyboardInterrupt
    parts = {plan.name: [row for row in store.rows if row.network == plan.name] for plan in plans}
    summaries = {name: summarise(rows) for name, rows in parts.items() if rows}
    content = _content(plans[0], summaries[plans[0].name].images)
    seconds = time.monotonic() - begun
    _record(
        folder,
        options,
        seconds,
        finished,
        {name: asdict(made) for name, made in {**summaries, "content": content}.items() if made},
    )
    show(console, _title(plans[0], summaries[plans[0].name].images), radii, summaries, content)
    if remark:
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    _draw(console, plans[0], store.rows, folder)
    unsound = [row for row in store.rows if row.unsound]
    if unsound:
        _alarm(unsound, folder)
        raise typer.Exit(1)
    if not finished:
        console.print("Stopped early: the certificates made so far are kept.")
        raise typer.Exit(130)


def parsed_eps(given: str) -> dict[float, str]:
    """Radii with the text that gave them, from the smallest on: "36/255,0.5"."""
    found: dict[float, str] = {}
    for piece in given.split(","):
        try:
            value = float(Fraction(piece.replace(" ", "")))
        except (ValueError, ZeroDivisionError, OverflowError):
            raise ValueError(
                f"--eps takes numbers and fractions such as 36/255,0.5, got {given!r}."
            ) from None
        if not value > 0:
            raise ValueError(f"--eps must be above 0, got {piece.strip()!r}.")
        found.setdefault(value, piece.strip())
    return dict(sorted(found.items()))


def _plans(options: dict[str, Any], radii: dict[float, str]) -> tuple[list[Plan], str]:
    """The network and, where there is one, its control, on the same images; and a remark on the
    control, if need be.

    Everything that can be refused is refused here, before anything is written.
    """
    from attnscope.certification.network import certify
    from attnscope.data.pictures import images as read_images

    if options["split"] not in SPLITS:
        raise ValueError(f"--split must be one of {', '.join(SPLITS)}, got {options['split']!r}.")
    folder = Path(options["checkpoint"]) if options["checkpoint"] else shipped()
    network, notes = _network(folder)
    data = options["data"] or notes.get("data")
    if data is None:
        raise ValueError(f"{str(folder)!r} does not say what it was trained on: pass --data.")
    chosen = read_images(data, options["split"]).first(options["images"])
    plan = Plan(
        network, chosen, tuple(radii), options["steps"], options["restarts"], options["seed"]
    )
    beside = Path(options["control"]) if options["control"] else control_of(folder)
    plans, remark = (
        [plan],
        (
            "No control: train the same network without attention for as long, and pass its folder"
            " as --control."
        ),
    )
    if beside is not None:
        control, other = _network(beside)
        plans.append(replace(plan, network=control, name="control"))
        remark = _budget(notes, other)
    for each in plans:
        _check_fit(each.network, chosen)
        certify(
            each.network.eval(), chosen.pixels[:1].double(), min(radii)
        )  # refuses layers without a bound
    return plans, remark


def control_of(folder: Path) -> Path | None:
    """The no-attention control that was trained beside a network, if there is one."""
    beside = folder / "control"
    return beside if (beside / "config.json").exists() else None


def _network(folder: Path) -> tuple[Transformer, dict[str, Any]]:
    network = load(folder)
    if network.config.image is None:
        raise ValueError(
            f"{str(folder)!r} is a language model: certify reads classifiers of images."
        )
    return network, describe(folder).get("notes", {})


def _budget(notes: dict[str, Any], control: dict[str, Any]) -> str:
    """A sentence when the control was not, or not certainly, trained for as long on the same
    images.
    """
    if not any(kept.get("minutes") or kept.get("steps") for kept in (notes, control)):
        return "Nothing says how long network and control were trained."
    differing = [
        name
        for name in ("data", "minutes", "steps", "finished")
        if notes.get(name) != control.get(name)
    ]
    told = ", ".join(f"{name} {notes.get(name)} against {control.get(name)}" for name in differing)
    return f"The control was trained otherwise: {told}." if told else ""


def _check_fit(network: nn.Module, images: Images) -> None:
    assert isinstance(network, Transformer)
    shape, classes = tuple(images.pixels.shape[1:]), len(images.classes)
    if shape != network.config.image:
        raise ValueError(
            f"the network reads images of (channels, height, width) {network.config.image}, but"
            f" {images.name} has {shape}."
        )
    if classes != network.config.outputs:
        raise ValueError(
            f"the network knows {network.config.outputs} classes, but {images.name} has {classes} "
            f"({', '.join(images.classes[:12])}): pass the data set that it was trained on."
        )


def _certify(console: Console, plans: list[Plan], store: Store) -> bool:
    """Run the certificates and the attacks under one progress bar; False when the user stopped
    it.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("certifying", total=sum(len(plan.images) for plan in plans))
        right = proved = seen = 0
        try:
            for plan in plans:
                for rows in evaluate(plan):
                    store.add(rows)
                    here = [row for row in rows if row.eps == min(plan.eps)]
                    seen, right = (
                        seen + len(here),
                        right + sum(row.label == row.predicted for row in here),
                    )
                    proved += sum(row.certified for row in here)
                    what = f"{plan.name}: {right / seen:.0%} right, {proved / seen:.0%} certified"
                    progress.update(task, advance=len(here), description=what)
                right = proved = seen = 0
        except KeyboardInterrupt:
            return False
        progress.update(task, description="certified")
    return True


def _content(plan: Plan, images: int) -> Content | None:
    """What its content attention is worth to the network on the images that were certified; None if
    it has no attention.
    """
    network = plan.network
    assert isinstance(network, Transformer)
    if not network.attentions:
        return None
    norms = tuple(tuple(norm.tolist()) for norm in network.attention_norms())
    return Content(norms, accuracy(network.with_content_off(), plan.images.first(images)))


def _title(plan: Plan, images: int) -> str:
    assert isinstance(plan.network, Transformer)
    config = plan.network.config
    return (
        f"{config.attention} attention, {config.heads} heads, depth {config.depth}: {images} images"
        f" of {plan.images.name}"
    )


def _record(
    folder: Path, options: dict[str, Any], seconds: float, finished: bool, parts: dict[str, Any]
) -> None:
    record = json.loads(run_record(options, seconds, finished)) | parts
    write_atomically(folder / "run.json", json.dumps(record, indent=2) + "\n")


def _draw(console: Console, plan: Plan, rows: list[Row], folder: Path) -> None:
    files = ["certificates.jsonl", "certificates.csv", "run.json"]
    try:
        from attnscope.certification.figures import (
            accuracy_against_eps,
            layer_bound_against_attack,
            nearest_images,
        )

        with console.status("Drawing ..."):
            pictures = {
                "accuracy-against-eps.png": accuracy_against_eps(rows),
                "bound-against-attack.png": layer_bound_against_attack(),
            }
            near = nearest(plan, [row for row in rows if row.network == plan.name])
            if near:
                pictures["nearest-images.png"] = nearest_images(near, plan.images.classes)
        for name, content in pictures.items():
            write_atomically(folder / name, content)
        files += pictures
    except ImportError:
        console.print('Figures need matplotlib: pip install "attnscope[plot]".', markup=False)
    console.print(f"In {folder}: " + ", ".join(files), highlight=False, soft_wrap=True)


def _alarm(unsound: list[Row], folder: Path) -> None:
    shown = ", ".join(
        sorted(
            {
                f"{row.network} image {row.image} at"
                f" {row.radius if row.broken_at_radius else row.eps:.4g}"
                for row in unsound
            }
        )[:5]
    )
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"[bold white on red] UNSOUND [/] the attack broke {len(unsound)} certificates ({shown})."
        " This is a bug in attnscope: please report it together with"
        f" {folder / 'certificates.jsonl'} and the checkpoint.",
    )
