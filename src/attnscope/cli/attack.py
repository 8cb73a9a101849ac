"""`attnscope attack`: the inputs that attention stretches most, and whether splitting tokens
helps.
"""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console

from attnscope import attacks
from attnscope.attacks.search import check_call
from attnscope.attacks.splitting import check_splittable
from attnscope.attention import Attention
from attnscope.attention.softmax import Softmax
from attnscope.bounds import check_covered
from attnscope.cli._attack_results import Results
from attnscope.cli._watch import watched
from attnscope.cli.measure import numbers
from attnscope.files import write_atomically
from attnscope.measure.store import run_record
from attnscope.measures import Particles
from attnscope.studies.matrices import MATRICES, attention_of_matrices, load_array

RESULTS = "attack.json"
BUDGETS = (0.001, 0.01, 0.1, 1.0)
"""Default budgets of the finite attacks, in units of the root mean square norm of the tokens."""


@dataclass(frozen=True)
class Target:
    """What is attacked: an attention, the tokens whose mass is split, and the ball in which inputs
    are searched.
    """

    name: str
    attention: Attention
    mu: Particles
    radius: float


def command(
    model: str | None = typer.Argument(
        None, help="A model as in `attnscope measure`; without one, attention is made of matrices."
    ),
    layer: int | None = typer.Option(None, min=0, help="Layer of the model (default: 0)."),
    head: int | None = typer.Option(
        None, min=0, help="One head of the layer alone (default: the whole layer)."
    ),
    text: str = typer.Option(
        "python-docs", help="Text whose tokens are split, as in `attnscope measure`."
    ),
    attention: str = typer.Option(
        "softmax", help="Which attention the matrices make; `attnscope variants` lists them."
    ),
    heads: int = typer.Option(1, min=1, help="Number of heads made of matrices."),
    scores: str = typer.Option(
        "random", help=f"Matrix A of the scores <Ax, y>: {', '.join(MATRICES)}, or a .npy file."
    ),
    values: str = typer.Option(
        "identity", help="Matrix V of the values, by name or .npy file like the scores."
    ),
    dim: int = typer.Option(8, min=1, help="Dimension of the matrices."),
    cloud: str | None = typer.Option(
        None, help="A .npy file (n, dim) of tokens to split (default: random ones in the ball)."
    ),
    causal: bool = typer.Option(
        False, "--causal", help="Tokens read those before them only (a model brings its own mask)."
    ),
    tokens: int = typer.Option(32, help="Number of tokens."),
    radius: float | None = typer.Option(
        None, help="Radius of the ball (default: 1, or the largest token norm of the text)."
    ),
    weighted: bool = typer.Option(
        False, "--weighted", help="Search masses too: the mean field, few unbalanced Diracs."
    ),
    only: str = typer.Option("both", help='"worst" or "split" for one of the two attacks alone.'),
    eps: str | None = typer.Option(
        None,
        help=(
            "Budgets in W_2 of the finite attacks, such as 0.01,0.1 (default: from small to a"
            " token's norm)."
        ),
    ),
    lengths: str | None = typer.Option(
        None, help="Also draw L(n, R) for these lengths, such as 2,4,8,16 or 4:33:4."
    ),
    radii: str | None = typer.Option(
        None,
        help=(
            "Radii of those curves, such as 0.5,1,2 (default: a quarter of the radius to all of"
            " it)."
        ),
    ),
    starts: int = typer.Option(24, min=1, help="Starts of the search."),
    steps: int = typer.Option(200, min=1, help="Steps of the ascent."),
    seed: int = typer.Option(0, min=0, help="Seed of random matrices, tokens and starts."),
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads (default: torch's own choice)."
    ),
    out: str | None = typer.Option(None, help="Folder for results (default: attack-NAME)."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace results that are already in the folder."
    ),
) -> None:
    """Which inputs does attention stretch most, and does splitting tokens help an attacker?

    Searches the worst input in a ball next to the proved bound (what it finds is a lower bound of
    the largest constant), and applies the exact law of mass splitting. Leaves attack.json,
    worst.npz and pictures. Ctrl-C ends a search and keeps what it found.
    """
    if model is None and not (layer is head is None):
        raise ValueError(
            "--layer and --head belong to a model: name one, such as `attnscope attack minilm"
            " --layer 3`."
        )
    layer = layer or 0
    options = dict(locals())
    if only not in ("both", "worst", "split"):
        raise ValueError(f'--only must be "both", "worst" or "split", got {only!r}.')
    if threads is not None:
        torch.set_num_threads(threads)
    folder = Path(out or f"attack-{Path(model).name if model else attention}")
    if (folder / RESULTS).exists() and not overwrite:
        raise ValueError(
            f"{folder / RESULTS} is already there. Pass --overwrite to replace it, or another"
            " --out."
        )
    console, begun = Console(), time.monotonic()
    target = _from_model(console, options) if model else _from_matrices(options)
    budgets, grid = _budgets(eps, target), _grid(lengths, radii, target.radius)
    if only != "split":
        check_call(target.attention, tokens, target.radius, weighted, starts, steps)
    if only != "worst":
        check_splittable(target.attention, target.mu)
    if grid is not None:
        check_covered(target.attention)
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(console)
    finished = _attack(target, results, budgets, grid, options)
    record = json.loads(run_record(options, time.monotonic() - begun, finished)) | results.record
    for name, content in {
        **results.files,
        RESULTS: (json.dumps(record, indent=1) + "\n").encode(),
    }.items():
        write_atomically(folder / name, content)
    console.print(
        f"Results in {folder}: {', '.join([RESULTS, *results.files])}",
        soft_wrap=True,
        highlight=False,
    )
    if not finished:
        console.print("Stopped early: what was found so far is kept.")
        raise typer.Exit(130)


def _attack(
    target: Target,
    results: Results,
    budgets: list[float],
    grid: tuple[list[int], list[float]] | None,
    options: dict[str, Any],
) -> bool:
    """Run what was asked for; False when a search was stopped."""
    only, search = options["only"], {name: options[name] for name in ("starts", "steps", "seed")}
    finished = True
    if only != "split":
        with watched(results.console, "searching the worst input") as watch:
            worst = attacks.worst_case(
                target.attention,
                options["tokens"],
                target.radius,
                options["weighted"],
                progress=watch,
                **search,
            )
        results.worst(worst, target.name)
        finished = not watch.stopped
    if only != "worst" and target.attention.heads.positional:
        results.law(attacks.split(target.attention, target.mu), target.name)
    elif only != "worst":
        results.comparison(attacks.compare(target.attention, target.mu, budgets), target.name)
    if grid is not None and finished:
        with watched(results.console, "searching L(n, R)") as watch:
            curves = attacks.curves(target.attention, *grid, progress=watch, **search)
        results.curves(curves)
        finished = not watch.stopped
    return finished


def _from_model(console: Console, options: dict[str, Any]) -> Target:
    from attnscope.data.texts import text as read_text
    from attnscope.models import load

    with (
        warnings.catch_warnings(record=True) as notices,
        console.status(f"Loading {options['model']} ..."),
    ):
        warnings.simplefilter("always")
        model = load(options["model"], dtype=torch.float64)
        ids = model.encode(read_text(options["text"]))
    for notice in {str(notice.message) for notice in notices}:
        console.print(f"Note: {notice}", highlight=False)
    count = options["tokens"]
    if not 2 <= count <= min(len(ids), model.positions):
        raise ValueError(
            f"--tokens must be from 2 to {min(len(ids), model.positions)} for {model.name} on this"
            f" text, got {count}."
        )
    attention = model.attention(options["layer"])
    name = f"{Path(model.name).name}, layer {options['layer']}"
    if options["head"] is not None:
        if options["head"] >= attention.heads.count:
            raise ValueError(
                f"--head must be from 0 to {attention.heads.count - 1}, got {options['head']}."
            )
        attention = Softmax(attention.heads.select(options["head"]), causal=attention.causal)
        name += f", head {options['head']}"
    x = model.tokens(ids[:count], options["layer"])
    return Target(
        name,
        attention,
        Particles(x),
        _radius(options["radius"], float(torch.linalg.vector_norm(x, dim=-1).max())),
    )


def _from_matrices(options: dict[str, Any]) -> Target:
    generator = torch.Generator().manual_seed(options["seed"])
    dim, radius = options["dim"], _radius(options["radius"], 1.0)
    made = attention_of_matrices(
        options["attention"],
        options["heads"],
        options["scores"],
        options["values"],
        dim,
        options["causal"],
        generator,
    )
    if options["cloud"] is None:
        if options["tokens"] < 1:
            raise ValueError(f"--tokens must be at least 1, got {options['tokens']}.")
        x = torch.randn(options["tokens"], dim, generator=generator, dtype=torch.float64)
        depth = torch.rand(options["tokens"], 1, generator=generator, dtype=torch.float64) ** (
            1 / dim
        )
        x = radius * depth * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    else:
        x = torch.from_numpy(np.asarray(load_array(options["cloud"]), dtype=np.float64))
        if x.ndim != 2 or x.shape[1] != dim:
            raise ValueError(
                f"{options['cloud']} must hold tokens of shape (n, {dim}) (see --dim), got"
                f" {tuple(x.shape)}."
            )
    return Target(f"{made.name} attention", made, Particles(x), radius)


def _radius(given: float | None, default: float) -> float:
    if given is not None and not 0 < given < float("inf"):
        raise ValueError(f"--radius must be a finite number above 0, got {given}.")
    return default if given is None else given


def _decimals(name: str, given: str) -> list[float]:
    try:
        found = sorted({float(piece) for piece in given.split(",")})
    except ValueError:
        raise ValueError(
            f"{name} takes numbers separated by commas such as 0.01,0.1, got {given!r}."
        ) from None
    if not all(0 < value < float("inf") for value in found):
        raise ValueError(f"{name} takes finite numbers above 0, got {given!r}.")
    return found


def _budgets(given: str | None, target: Target) -> list[float]:
    if given is not None:
        return _decimals("--eps", given)
    typical = float(target.mu.x.square().sum(-1).mean().sqrt())
    return [typical * factor for factor in BUDGETS]


def _grid(
    lengths: str | None, radii: str | None, radius: float
) -> tuple[list[int], list[float]] | None:
    if lengths is None:
        if radii is not None:
            raise ValueError(
                "--radii goes with --lengths: name the lengths of the curves L(n, R) too."
            )
        return None
    return numbers("--lengths", lengths), (
        [radius * part / 4 for part in (1, 2, 3, 4)]
        if radii is None
        else _decimals("--radii", radii)
    )
