"""`attnscope train`: train a vision transformer that can be certified, its attention alive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from attnscope.attention import variants
from attnscope.cli._options import fraction
from attnscope.cli._run import say
from attnscope.data.pictures import SOURCES, STRIPED, Images
from attnscope.nets import Config
from attnscope.studies import Stop
from attnscope.training import LOSSES, Look, Progress, Recipe, fit
from attnscope.training.files import LOG, STATE

FLIPPED = ("cifar10",)
"""Named data sets whose classes a mirror does not change."""


def command(
    data: str = typer.Option("digits", help=f"{SOURCES}."),
    attention: str = typer.Option(
        "softmax",
        help=(
            'Which attention; `attnscope variants` lists them. "none": no attention at all, so that'
            " tokens never meet."
        ),
    ),
    depth: int = typer.Option(1, min=1, help="Number of attention and MLP layers."),
    loss: str = typer.Option("gradient", help=f"What to train for: {', '.join(LOSSES)}."),
    eps: str = typer.Option(
        "54/255", help="Radius to train for, l2 of pixels in [0, 1]: a number or a fraction."
    ),
    delay: float = typer.Option(
        0.0, help="Part of the budget in which the radius stays 0: content attention comes first."
    ),
    ramp: float = typer.Option(0.0, help="Part of the budget in which it then rises to --eps."),
    margins: str = typer.Option(
        "fixed",
        help=(
            "fixed: the loss takes eps times the slope from every margin; earned: no more than the"
            " margin has."
        ),
    ),
    minutes: float | None = typer.Option(
        None, help="Budget in minutes of computing; evaluations do not count (default: 3)."
    ),
    steps: int | None = typer.Option(
        None, min=1, help="Budget in steps instead: then a seed gives the same network every time."
    ),
    heads: int = typer.Option(2, min=1, help="Heads of each attention layer."),
    head_width: int | None = typer.Option(
        None, min=1, help="Width of queries and keys of a head (default: dim / (2 heads))."
    ),
    value_width: int | None = typer.Option(
        None, min=1, help="Width of what a head reads of a token (default: dim / heads)."
    ),
    pooling: str = typer.Option(
        "flatten", help="What the last layer reads: flatten (all tokens side by side) or mean."
    ),
    look: str = typer.Option(
        "near",
        help="Where heads look before they are trained: near (at the next patch) or anywhere.",
    ),
    learned_embedding: bool = typer.Option(
        False, "--learned-embedding", help="Train the matrix that embeds patches, too."
    ),
    dim: int | None = typer.Option(
        None,
        min=1,
        help="Dimension of tokens (default: pixels of a patch, 32 at least, 96 at most).",
    ),
    hidden: int = typer.Option(128, min=1, help="Units of each MLP."),
    patch: int | None = typer.Option(
        None,
        min=1,
        help=(
            "Side of a patch (default: an eighth of the image, 2 at least; a strip of squares is"
            " cut into them)."
        ),
    ),
    mlp: str = typer.Option(
        "sll", help="MLP blocks: sll and convex are 1-Lipschitz, residual is the plain one, none."
    ),
    half_width: float = typer.Option(
        1.0, help="Half-width of the rounded corner of the ReLU: larger is less curved."
    ),
    batch: int = typer.Option(128, min=1, help="Images per step."),
    rate: float = typer.Option(3e-3, help="Largest learning rate."),
    floor: float = typer.Option(
        0.25, help="Smallest norm of A that training allows; 0 lets content attention die."
    ),
    cap: float = typer.Option(
        0.4, help="Largest norm of A that training allows: more attention, but harder to certify."
    ),
    value_cap: float = typer.Option(
        0.5, help="Largest norm of what a head writes that training allows, likewise."
    ),
    flip: bool | None = typer.Option(None, help="Mirror images at random (default: for cifar10)."),
    shift: int | None = typer.Option(
        None,
        min=0,
        help=(
            "Move images by up to so many pixels at random (default: a sixteenth of a side, 0 for"
            " strips)."
        ),
    ),
    watched: int = typer.Option(
        50,
        min=1,
        help="Held-out images, the last of the test split, that are certified as training goes on.",
    ),
    control: bool = typer.Option(
        False,
        "--control",
        help="Train the control too, into OUT/control: A = 0 from scratch, tokens mix by place.",
    ),
    device: str = typer.Option("cpu", help="Where to compute: cpu, cuda, mps."),
    threads: int = typer.Option(1, min=1, help="CPU threads."),
    seed: int = typer.Option(0, min=0, help="Seed of weights, batches and shifts."),
    out: str | None = typer.Option(
        None, help="Folder for the network (default: train-DATA-ATTENTION)."
    ),
    resume: bool = typer.Option(False, "--resume", help="Go on from the checkpoint in the folder."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace what is already in the folder."
    ),
) -> None:
    """Train a small vision transformer so that its predictions can be certified.

    Leaves network.safetensors, config.json and log.jsonl; `attnscope certify FOLDER` reads them.
    Ctrl-C keeps a checkpoint that --resume takes up.
    """
    options = dict(locals())
    console = Console()
    torch.set_num_threads(threads)
    if control and attention == "none":
        raise ValueError(
            "--control trains the same network with A = 0, and --attention none has no A: leave"
            " --control out."
        )
    folder = Path(out or f"train-{_name(data)}-{attention}")
    _check_folder(folder, resume, overwrite)
    with console.status(f"Loading {escape(data)} ..."):
        train, held_out = _data(data, watched)
    recipe = _recipe(options, train)
    runs = [(recipe, folder)]
    if control:
        runs.append((recipe.control(), folder / "control"))
    for each, place in runs:
        stored = (place / STATE).exists()
        if resume and not stored and (place / "config.json").exists():
            say(console, f"{place} is finished already.")
            continue
        go_on = resume and (stored or place == folder)
        stop = Stop(lambda sentence: say(console, sentence))
        try:
            with _watched(console, each.config, stop) as watch:
                looked = fit(
                    each,
                    train,
                    held_out,
                    place,
                    source=data,
                    resume=go_on,
                    device=device,
                    watch=watch,
                )
        except KeyboardInterrupt:  # the second signal; the checkpoint is there
            raise typer.Exit(stop.exit_code or 130) from None
        _show(console, each, looked, place)
        if (place / STATE).exists():
            console.print("Stopped early: take it up again with the same options and --resume.")
            raise typer.Exit(stop.exit_code or 130)


def _name(data: str) -> str:
    """Of a set, as part of the name of a folder: strips:PATH.npz is strips-PATH."""
    kind, _, of = data.partition(":")
    return f"{kind}-{Path(of).stem}" if kind in STRIPED and of else Path(data).stem


def _shift(options: dict[str, Any], side: int) -> int:
    """Moving a strip would bring a part of a picture into the place of the next one."""
    usual = 0 if options["data"].partition(":")[0] in STRIPED else side // 16
    return usual if options["shift"] is None else int(options["shift"])


def _check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ValueError(
            "--resume goes on with what is in the folder, --overwrite replaces it: pass one of"
            " them."
        )
    there = [name for name in ("config.json", STATE, LOG) if (folder / name).exists()]
    if there and not resume and not overwrite:
        raise ValueError(
            f"{str(folder)!r} already holds {there[0]}: pass --resume to go on, --overwrite to"
            " start again, or another --out."
        )


def _data(source: str, watched: int) -> tuple[Images, Images]:
    from attnscope.data.pictures import images

    train, test = images(source, "train"), images(source, "test")
    return train, Images(test.pixels[-watched:], test.labels[-watched:], test.classes, test.name)


def _recipe(options: dict[str, Any], train: Images) -> Recipe:
    channels, height, width = train.pixels.shape[1:]
    patch = options["patch"] or _patch(height, width)
    if options["attention"] not in (*variants(), "none"):
        raise ValueError(
            f"--attention must be one of {', '.join(variants())} or none, got"
            f" {options['attention']!r}."
        )
    dim = options["dim"] or min(max(32, channels * patch**2), 96)
    tokens = (height // patch) * (width // patch)
    config = Config.vit(
        (channels, height, width),
        len(train.classes),
        patch,
        dim=dim,
        depth=options["depth"],
        attention=options["attention"],
        options={"tokens": tokens} if options["attention"] == "sigmoid" else {},
        heads=options["heads"],
        head_dim=options["head_width"] or max(1, dim // (2 * options["heads"])),
        value_dim=options["value_width"] or max(1, dim // options["heads"]),
        pooling=options["pooling"],
        look=options["look"],
        learned_embedding=options["learned_embedding"],
        position_bias=options["attention"] != "sinkhorn",
        mlp=options["mlp"],
        hidden=options["hidden"],
        half_width=options["half_width"],
    )
    minutes = 3.0 if options["minutes"] is None and options["steps"] is None else options["minutes"]
    return Recipe(
        config,
        loss=options["loss"],
        eps=fraction("--eps", options["eps"]),
        delay=options["delay"],
        ramp=options["ramp"],
        margins=options["margins"],
        steps=options["steps"],
        minutes=minutes,
        batch=options["batch"],
        rate=options["rate"],
        floor=options["floor"],
        cap=options["cap"],
        value_cap=options["value_cap"],
        flip=options["data"] in FLIPPED if options["flip"] is None else options["flip"],
        shift=_shift(options, min(height, width)),
        seed=options["seed"],
    )


def _patch(height: int, width: int) -> int:
    """The smallest side of at least 2 pixels and an eighth of the image that tiles it; a strip of
    squares side by side is cut into these.
    """
    if max(height, width) > min(height, width) > 1 and max(height, width) % min(height, width) == 0:
        return min(height, width)
    least = max(2, math.ceil(min(height, width) / 8))
    fitting = [
        side
        for side in range(least, min(height, width) + 1)
        if height % side == 0 and width % side == 0
    ]
    if not fitting:
        raise ValueError(
            f"no patch tiles images of {height} x {width} pixels: crop them, or pass --patch 1."
        )
    return fitting[0]


@contextmanager
def _watched(console: Console, config: Config, stop: Stop) -> Iterator[Callable[[Progress], bool]]:
    """A progress bar that answers whether to go on: the first signal stops after the current step
    with a checkpoint.
    """
    columns = (
        TextColumn("training " + (config.attention if config.content else "the control")),
        BarColumn(),
        TaskProgressColumn(),
    )
    with Bar(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
    ) as bar:
        task = bar.add_task("", total=1.0)

        def watch(progress: Progress) -> bool:
            bar.update(task, completed=progress.part, description=_described(progress))
            return not stop.asked

        with stop.listening():
            yield watch


def _described(progress: Progress) -> str:
    if progress.looked is not None:
        return (
            f"clean {_percent(progress.looked.clean)}, certified"
            f" {_percent(progress.looked.certified)}"
        )
    seen = progress.seen
    return f"loss {seen.loss:.3f}, clean {_percent(seen.clean)} of the batch" if seen else ""


def _percent(share: float | None) -> str:
    return "no bound" if share is None else f"{100 * share:.0f} %"


def _show(console: Console, recipe: Recipe, looked: Look, folder: Path) -> None:
    table = Table(
        title=(
            f"{recipe.config.attention}{'' if recipe.config.content else ' with A = 0'},"
            f" depth {recipe.config.depth}:"
            f" {looked.images} held-out images"
        ),
        show_header=False,
    )
    table.add_row("clean", _percent(looked.clean))
    table.add_row(f"certified at {recipe.eps:.4g} (proved)", _percent(looked.certified))
    if looked.content_norms and recipe.config.content:
        table.add_row("clean with A set to 0", _percent(looked.content_off))
        norms = ["  ".join(f"{norm:.2f}" for norm in layer) for layer in looked.content_norms]
        table.add_row("norm of A, layer by layer", "\n".join(norms))
    console.print(table)
    say(console, f"In {folder}: network.safetensors, config.json, {LOG}")
