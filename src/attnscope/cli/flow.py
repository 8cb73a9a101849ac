"""`attnscope flow`: watch tokens, or a Gaussian of tokens, move through depth."""

from __future__ import annotations

import dataclasses

import typer

from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of
from attnscope.studies.flow import Flow, FlowConfig
from attnscope.studies.matrices import MATRICES


def command(
    attention: str = typer.Option(
        "softmax", help="Which attention; `attnscope variants` lists them."
    ),
    heads: int = typer.Option(1, min=1, help="Number of heads, each with matrices of its own."),
    scores: str = typer.Option(
        "identity", help=f"Matrix A of the scores <Ax, y>: {', '.join(MATRICES)}, or a .npy file."
    ),
    values: str = typer.Option(
        "identity", help="Matrix V of the values, by name or .npy file like the scores."
    ),
    particles: int = typer.Option(
        64,
        min=1,
        help="Number of tokens, drawn from a standard normal law (then put on the surface).",
    ),
    gaussian: bool = typer.Option(
        False, "--gaussian", help="Move a Gaussian by its closed form instead of particles."
    ),
    dim: int = typer.Option(2, min=1, help="Dimension of the tokens."),
    time: float = typer.Option(5.0, help="How long to flow (depth times step)."),
    space: str = typer.Option(
        "euclidean", help='"euclidean", "sphere", or a .npy file of RMSNorm gains (an ellipsoid).'
    ),
    causal: bool = typer.Option(False, "--causal", help="Tokens read those before them only."),
    gap: float | None = typer.Option(
        None,
        help=(
            "Tokens this close belong to one cluster (default: a twentieth of the radius of the"
            " cloud at that time)."
        ),
    ),
    method: str = typer.Option("DOP853", help="Solver: DOP853, RK45, RK23, Radau, BDF or LSODA."),
    rtol: float = typer.Option(1e-6, help="Relative tolerance of the solver."),
    frames: int = typer.Option(
        60, min=2, help="Pictures in the animation, and states in the data."
    ),
    seed: int = typer.Option(0, min=0, help="Seed of tokens and random matrices."),
    out: str | None = typer.Option(None, help=f"{OUT} (Default: flow-ATTENTION.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
) -> None:
    """How do tokens flow with depth?

    Integrates x' = attention(x, mu) and leaves flow.npz (times and states), flow.png, flow.svg,
    flow.gif and run.json. Ctrl-C keeps what was computed.
    """
    options = dict(locals())
    named = {field.name: options[field.name] for field in dataclasses.fields(FlowConfig)}
    outcome = execute(
        Flow(),
        FlowConfig(**named),
        folder=folder_of(out, "flow", attention),
        overwrite=overwrite,
        options=options,
    )
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)
