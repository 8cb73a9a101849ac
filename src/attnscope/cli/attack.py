"""`attnscope attack`: the inputs that attention stretches most, and whether splitting tokens
helps.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from attnscope.cli._options import numbers
from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of, say
from attnscope.studies import Workbench
from attnscope.studies.attack import Attack, AttackConfig
from attnscope.studies.matrices import MATRICES

MATRICES_ALONE = ("attention", "heads", "scores", "values", "dim", "causal")
"""Options that make attention of matrices; no model takes them."""


def command(
    model: str | None = typer.Argument(
        None, help="A model as in `attnscope measure`; without one, attention is made of matrices."
    ),
    layer: int | None = typer.Option(None, min=0, help="Layer of the model (default: 0)."),
    head: int | None = typer.Option(
        None, min=0, help="One head of the layer alone (default: the whole layer)."
    ),
    text: str = typer.Option(
        "alice", help="Text whose tokens are split, as in `attnscope measure`."
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
    out: str | None = typer.Option(None, help=f"{OUT} (Default: attack-NAME.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
) -> None:
    """Which inputs does attention stretch most, and does splitting tokens help an attacker?

    Searches the worst input in a ball next to the proved bound (what it finds is a lower bound of
    the largest constant), and applies the exact law of mass splitting. Leaves attack.json,
    worst.npz and pictures. Ctrl-C ends a search and keeps what it found, and the same command again
    goes on where it stopped.
    """
    if model is None and not (layer is head is None):
        raise ValueError(
            "--layer and --head belong to a model: name one, such as `attnscope attack minilm"
            " --layer 3`."
        )
    layer = layer or 0
    options = dict(locals())
    if threads is not None:
        torch.set_num_threads(threads)
    config, console = _config(options), Console()
    outcome = execute(
        Attack(),
        config,
        folder=folder_of(out, "attack", model or attention),
        overwrite=overwrite,
        options=options,
        workbench=_loaded(console, config),
        console=console,
    )
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)


def _config(options: dict[str, Any]) -> AttackConfig:
    only, radius, tokens = options["only"], options["radius"], options["tokens"]
    if only not in ("both", "worst", "split"):
        raise ValueError(f'--only must be "both", "worst" or "split", got {only!r}.')
    if radius is not None and not 0 < radius < float("inf"):
        raise ValueError(f"--radius must be a finite number above 0, got {radius}.")
    usual = {field.name: field.default for field in dataclasses.fields(AttackConfig)}
    made = [name for name in MATRICES_ALONE if options[name] != usual[name]]
    if options["model"] is not None and made:
        raise ValueError(
            f"--{made[0]} makes attention of matrices, and a model brings its own: leave out"
            f" {options['model']!r} or --{made[0]}."
        )
    if tokens < 1:
        raise ValueError(f"--tokens must be at least 1, got {tokens}.")
    eps, lengths, radii = options["eps"], options["lengths"], options["radii"]
    if lengths is None and radii is not None:
        raise ValueError("--radii goes with --lengths: name the lengths of the curves L(n, R) too.")
    names = {field.name for field in dataclasses.fields(AttackConfig)}
    given = {name: value for name, value in options.items() if name in names} | {
        "eps": None if eps is None else decimals("--eps", eps),
        "lengths": None if lengths is None else tuple(numbers("--lengths", lengths)),
        "radii": None if radii is None else decimals("--radii", radii),
    }
    return AttackConfig(**given)


def _loaded(console: Console, config: AttackConfig) -> Workbench:
    """A workbench with the model and the text on it; what a reader should know is printed."""
    workbench = Workbench()
    if config.model is None:
        return workbench
    with (
        warnings.catch_warnings(record=True) as notices,
        console.status(f"Loading {escape(config.model)} ..."),
    ):
        warnings.simplefilter("always")
        workbench.model(config.model, dtype="float64")
        workbench.text(config.text)
    for notice in {str(notice.message) for notice in notices}:
        say(console, f"Note: {notice}")
    return workbench


def decimals(name: str, given: str) -> tuple[float, ...]:
    """Finite numbers above 0, separated by commas; sorted, each once."""
    try:
        found = sorted({float(piece) for piece in given.split(",")})
    except ValueError:
        raise ValueError(
            f"{name} takes numbers separated by commas such as 0.01,0.1, got {given!r}."
        ) from None
    if not all(0 < value < float("inf") for value in found):
        raise ValueError(f"{name} takes finite numbers above 0, got {given!r}.")
    return tuple(found)
