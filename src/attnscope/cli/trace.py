"""`attnscope trace MODEL`: tokens on their way through a network."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
import typer
from rich.console import Console
from rich.markup import escape

from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of, say
from attnscope.data import read_ids
from attnscope.studies import Workbench
from attnscope.studies.measure.door import put_text
from attnscope.studies.trace import Trace, TraceConfig


def command(
    model: str = typer.Argument(
        ..., help='"minilm", "gpt2-random", "bert-random", a folder, or a Hugging Face id.'
    ),
    text: str = typer.Option(
        "alice", help='A text file, "alice" (in Wonderland) or "python-docs" (ships with Python).'
    ),
    ids: str | None = typer.Option(
        None,
        help=(
            "Token ids instead of a text, for a model without a tokenizer: a .npy file, or whole"
            " numbers in a text file."
        ),
    ),
    tokens: int | None = typer.Option(
        None, help="Tokens per sequence (default: all, up to 256 and the model's limit)."
    ),
    samples: int = typer.Option(1, min=1, help="Sequences: consecutive pieces of the text."),
    gap: float = typer.Option(
        0.5, help="Hops that hold a cluster together, in RMS distances between two tokens."
    ),
    device: str = typer.Option("cpu", help="Where to compute: cpu, cuda, mps."),
    dtype: str = typer.Option("float32", help="float32 or float64, of the forward pass."),
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads (default: torch's own choice)."
    ),
    out: str | None = typer.Option(None, help=f"{OUT} (Default: trace-MODEL.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
) -> None:
    """Where do the tokens go, and does the Gaussian theory foresee it?

    Follows the tokens of a text from layer to layer: spectrum of their covariance, rank,
    anisotropy, clusters, distances, sinks; beside each attention step the closed form on the
    Gaussian of the same mean and covariance, with its errors and those of simpler guesses. Leaves
    tables, figures and an animation.
    """
    options = dict(locals())
    if threads is not None:
        torch.set_num_threads(threads)
    config = TraceConfig(model, text, tokens, samples, gap, device, dtype)
    console, workbench = Console(), Workbench()
    if ids is None:
        workbench.text(text)
    else:
        config = replace(config, text=put_text(workbench, model, read_ids(ids)))
    with (
        warnings.catch_warnings(record=True) as notices,
        console.status(f"Loading {escape(model)} ..."),
    ):
        warnings.simplefilter("always")
        list(Trace().cells(config, workbench))
    for notice in {str(notice.message) for notice in notices}:
        say(console, f"Note: {notice}")
    outcome = execute(
        Trace(),
        config,
        folder=folder_of(out, "trace", model),
        overwrite=overwrite,
        options=options,
        workbench=workbench,
        console=console,
    )
    for verdict in outcome.table.verdicts():
        say(console, f"{verdict.outcome}: {verdict.statement} ({verdict.measured}).")
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)
