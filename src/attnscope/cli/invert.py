"""`attnscope invert`: send tokens through a stack of invertible attention layers and find them
again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import typer

from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of
from attnscope.studies.invert import Invert, InvertConfig


def command(
    attention: str | None = typer.Option(
        None, help="softmax (default), sigmoid, sinkhorn or l2 (tied, on the whole space)."
    ),
    layers: int | None = typer.Option(None, min=1, help="Number of layers (default 24)."),
    tokens: int | None = typer.Option(None, min=1, help="Number of tokens (default 16)."),
    dim: int | None = typer.Option(None, min=1, help="Dimension of the tokens (default 8)."),
    heads: int | None = typer.Option(
        None, min=1, help="Heads per layer; they divide the dimension (default 2)."
    ),
    radius: float | None = typer.Option(
        None, help="Radius of the ball that tokens are drawn from (default 1)."
    ),
    contraction: float | None = typer.Option(
        None, help="Proved Lipschitz constant of every attention, at most 0.99 (default 0.9)."
    ),
    causal: bool | None = typer.Option(
        None, "--causal", help="Tokens read those before them only."
    ),
    squash: bool | None = typer.Option(
        None,
        "--squash",
        help="Attention reads tokens squashed into the ball, so that they may lie anywhere.",
    ),
    dtype: str | None = typer.Option(None, help="float64 (default) or float32."),
    file: str | None = typer.Option(
        None, help="A stack that `Invertible.save` wrote, instead of a random one."
    ),
    most: int = typer.Option(1000, min=1, help="Most iterations per layer to try."),
    seed: int = typer.Option(0, min=0, help="Seed of tokens and weights."),
    out: str | None = typer.Option(None, help=f"{OUT} (Default: invert.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
) -> None:
    """Can attention layers be undone?

    Sends tokens through y = x + f(x), every f scaled to a proved contraction, and finds them again
    by fixed-point iteration: the error against the number of iterations, next to its proved bound.
    Leaves invert.npz, invert.png, invert.svg, network.npz and run.json. Ctrl-C keeps what was
    computed.
    """
    options = dict(locals())
    outcome = execute(
        Invert(),
        _config(options),
        folder=folder_of(out, "invert"),
        overwrite=overwrite,
        options=options,
    )
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)


def _config(options: dict[str, Any]) -> InvertConfig:
    """Options that were left out keep the defaults of the study."""
    names = {field.name for field in dataclasses.fields(InvertConfig)}
    given = {name: value for name, value in options.items() if name in names and value is not None}
    extra = [f"--{name}" for name in given if name not in ("file", "radius", "most", "seed")]
    if "file" in given and extra:
        raise ValueError(f"--file already says what the stack is: leave out {', '.join(extra)}.")
    return InvertConfig(**given)
