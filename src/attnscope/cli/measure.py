"""`attnscope measure MODEL`: local Lipschitz constants of a model on a text."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from attnscope.cli._options import numbers as numbers
from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of, say
from attnscope.data import read_ids
from attnscope.models import PARTS, Model
from attnscope.studies import Workbench
from attnscope.studies.measure import Measure, MeasureConfig
from attnscope.studies.measure.door import put_text
from attnscope.studies.measure.sweep import needs_double, text_ids
from attnscope.studies.workbench import DTYPES


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
    layers: str = typer.Option(
        "all", help='Which layers: "all", or numbers and ranges such as 0,6 or 0:12:2.'
    ),
    heads: str = typer.Option(
        "longest",
        help='Single heads too: "longest" (at the longest length), "all", "none", or numbers.',
    ),
    lengths: str = typer.Option(
        "2:100:2", help="Sequence lengths: numbers and start:stop:step ranges (stop not included)."
    ),
    samples: int = typer.Option(
        10, min=1, help="Sequences per length: consecutive pieces of the text."
    ),
    part: str = typer.Option(
        "attention",
        help="The map: attention, norm+attention, residual, mlp or block.",
    ),
    tol: float | None = typer.Option(
        None, help="Relative width of each bracket (default 1e-3; with --estimate 1e-6)."
    ),
    certify: float = typer.Option(
        1e-6, help="All upper bounds of the run hold together but with this probability."
    ),
    estimate: bool = typer.Option(
        False, "--estimate", help="No upper bounds: lower bounds whose accuracy is an estimate."
    ),
    fit_from: int = typer.Option(
        1, min=1, help="The shortest length that the exponent is fitted to."
    ),
    released_estimator: bool = typer.Option(
        False,
        "--released-estimator",
        help="Also report sqrt(||J^T f(X)||), as the papers' scripts did.",
    ),
    bounds: bool = typer.Option(True, help="Evaluate every proved bound at the longest length."),
    device: str = typer.Option("cpu", help="Where to compute: cpu, cuda, mps."),
    dtype: str = typer.Option(
        "float32", help="float32 (lower bounds are finished in float64) or float64."
    ),
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads (default: torch's own choice)."
    ),
    seed: int = typer.Option(0, min=0, help="Seed of the random start vectors."),
    out: str | None = typer.Option(None, help=f"{OUT} (Default: measure-MODEL.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
) -> None:
    """How smooth is the attention of this model on this text?

    Measures the local Lipschitz constant (the largest singular value of the Jacobian) of each layer
    at sequences of growing length, next to every proved bound. Leaves a table, figures,
    results.jsonl and results.csv. Ctrl-C keeps what was measured, and the same command again goes
    on where it stopped.
    """
    options = dict(locals())
    if threads is not None:
        torch.set_num_threads(threads)
    config, console = _config(options), Console()
    workbench = Workbench()
    if ids is None:
        workbench.text(text)
    else:
        config = replace(config, text=put_text(workbench, model, read_ids(ids)))
    _load(console, config, workbench)
    outcome = execute(
        Measure(),
        config,
        folder=folder_of(out, "measure", model),
        overwrite=overwrite,
        options=options,
        workbench=workbench,
        console=console,
    )
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)


def _config(options: dict[str, Any]) -> MeasureConfig:
    if options["part"] not in PARTS:
        raise ValueError(f"--part must be one of {', '.join(PARTS)}, got {options['part']!r}.")
    if options["dtype"] not in DTYPES:
        raise ValueError(f"--dtype must be {' or '.join(DTYPES)}, got {options['dtype']!r}.")
    layers, heads = options["layers"], options["heads"]
    named = heads in ("all", "none", "longest")
    same = ("model", "text", "samples", "part", "bounds", "device", "dtype", "seed", "fit_from")
    return MeasureConfig(
        **{name: options[name] for name in same},
        layers=None if layers == "all" else tuple(numbers("--layers", layers)),
        heads=heads if named else tuple(numbers("--heads", heads)),
        lengths=tuple(numbers("--lengths", options["lengths"])),
        tol=options["tol"] or (1e-6 if options["estimate"] else 1e-3),
        failure_probability=None if options["estimate"] else options["certify"],
        released=options["released_estimator"],
    )


def _load(console: Console, config: MeasureConfig, workbench: Workbench) -> None:
    """Put the model and the text on the workbench; what a reader should know is printed."""
    with (
        warnings.catch_warnings(record=True) as notices,
        console.status(f"Loading {escape(config.model)} ..."),
    ):
        warnings.simplefilter("always")
        model = workbench.model(config.model, config.device, config.dtype)
        _tokenise(workbench, model, config.text)
        if needs_double(model, config.part):
            workbench.model(config.model, config.device, "float64")
    for notice in {str(notice.message) for notice in notices}:
        say(console, f"Note: {notice}")
    known = all(model.rebuilt(layer) for layer in range(model.layers))
    if not known and not notices:
        say(
            console,
            "Note: the heads of this model cannot be rebuilt, so single heads and proved bounds are"
            " left out.",
        )


def _tokenise(workbench: Workbench, model: Model, text: str) -> None:
    try:
        text_ids(workbench, model, text)
    except ValueError as error:
        if "without a tokenizer" not in str(error):
            raise
        raise ValueError(f"{model.name} came without a tokenizer: pass --ids FILE.") from error
