"""`attnscope measure MODEL`: local Lipschitz constants of a model on a text."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from attnscope.cli._engine import CACHE, cache_of
from attnscope.cli._options import numbers as numbers
from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of, say
from attnscope.cli._span import given, is_span, span_config
from attnscope.data import images as read_images
from attnscope.data import read_embeddings, read_ids, text_lines
from attnscope.models import PARTS, Model, fitted
from attnscope.studies import Workbench
from attnscope.studies.measure import Measure, MeasureConfig
from attnscope.studies.measure.door import put_text, put_texts
from attnscope.studies.measure.inputs import text_ids
from attnscope.studies.measure.sweep import needs_double
from attnscope.studies.span import SpanConfig, Spans
from attnscope.studies.workbench import DTYPES

LENGTHS = "2:100:2"  # help texts say it in words: rich takes :100: for a picture
INPUTS = ("ids", "texts", "embeddings", "images")
"""What may take the place of a text."""
WHY = (
    "neither its weights nor transformers' AttentionInterface show them, or what follows the"
    " attention mixes its heads."
)


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
    texts: str | None = typer.Option(
        None,
        help=(
            "Several texts, the lines of a file, each a sequence of its own: whole, or with"
            " --lengths the first tokens of those that have so many."
        ),
    ),
    embeddings: str | None = typer.Option(
        None,
        help=(
            "Embeddings of tokens instead of a text, (n, d) or (B, n, d): a .npy, .npz or"
            " .safetensors file."
        ),
    ),
    images: str | None = typer.Option(
        None,
        help=(
            'Images instead of a text, for a vision model: "digits", a folder of pictures by class,'
            " or a .npz file."
        ),
    ),
    special_tokens: bool = typer.Option(
        False,
        "--special-tokens",
        help="Begin and end each sequence as the tokenizer does; they count as tokens.",
    ),
    layers: str = typer.Option(
        "all", help='Which layers: "all", or numbers and ranges such as 0,6 or 0:12:2.'
    ),
    heads: str = typer.Option(
        "longest",
        help='Single heads too: "longest" (at the longest length), "all", "none", or numbers.',
    ),
    start: str | None = typer.Option(
        None, "--from", help="A span of blocks, from: a layer number, last or final (default 0)."
    ),
    stop: str | None = typer.Option(
        None, "--to", help="A span, to: a layer number, last (default), final, logits or next."
    ),
    top: int | None = typer.Option(
        None, min=1, help="How many singular values of a span (default 1)."
    ),
    lengths: str | None = typer.Option(
        None,
        help=(
            "Sequence lengths: numbers and start:stop:step ranges, stop not included (default"
            " every second one from 2 to 98; of a span 128)."
        ),
    ),
    samples: int | None = typer.Option(
        None,
        min=1,
        help="Sequences per length: consecutive pieces of the text (default 10; of a span 1).",
    ),
    part: str = typer.Option(
        "attention",
        help="The map: attention, norm+attention, residual, mlp or block.",
    ),
    tol: float | None = typer.Option(
        None,
        help="Relative width of each bracket (default 1e-3, of a span 1e-2; less with --estimate).",
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
    out: str | None = typer.Option(None, help=f"{OUT} (Default: measure-MODEL or span-MODEL.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
    cache: str | None = typer.Option(None, help=CACHE),
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
    if dtype not in DTYPES:
        raise ValueError(f"--dtype must be {' or '.join(DTYPES)}, got {dtype!r}.")
    span = is_span(options)
    config = span_config(options) if span else _config(options)
    console, workbench = Console(), Workbench()
    config = _with_inputs(workbench, config, options)
    _load(console, config, workbench)
    outcome = execute(
        Spans() if span else Measure(),
        config,
        folder=folder_of(out, "span" if span else "measure", model),
        overwrite=overwrite,
        options=options,
        workbench=workbench,
        console=console,
        cache=cache_of(cache),
    )
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)


def _config(options: dict[str, Any]) -> MeasureConfig:
    if options["part"] not in PARTS:
        raise ValueError(f"--part must be one of {', '.join(PARTS)}, got {options['part']!r}.")
    layers, heads = options["layers"], options["heads"]
    named = heads in ("all", "none", "longest")
    same = ("model", "text", "part", "bounds", "device", "dtype", "seed", "fit_from")
    return MeasureConfig(
        **{name: options[name] for name in same},
        layers=None if layers == "all" else tuple(numbers("--layers", layers)),
        heads=heads if named else tuple(numbers("--heads", heads)),
        lengths=tuple(numbers("--lengths", given(options["lengths"], LENGTHS))),
        samples=given(options["samples"], 10),
        tol=given(options["tol"], 1e-6 if options["estimate"] else 1e-3),
        failure_probability=None if options["estimate"] else options["certify"],
        released=options["released_estimator"],
        special_tokens=options["special_tokens"],
    )


def _with_inputs(
    workbench: Workbench, config: MeasureConfig | SpanConfig, options: dict[str, Any]
) -> MeasureConfig | SpanConfig:
    """Put what the model is to read on the workbench: a text, several, ids, embeddings, images."""
    told = [name for name in INPUTS if options[name] is not None]
    if len(told) > 1:
        raise ValueError(f"one kind of input at a time: leave out --{told[0]} or --{told[1]}.")
    if not told:
        workbench.text(config.text)
        return config
    kind, source, model = told[0], options[told[0]], config.model
    if kind == "ids":
        return replace(config, text=put_text(workbench, model, read_ids(source)))
    if isinstance(config, SpanConfig):
        raise ValueError(f"a span reads a text or ids: leave --{kind} out.")
    if kind == "images":
        return _with_images(workbench, config, source)
    if kind == "texts":
        lines = text_lines(source)
        name, count = put_texts(workbench, model, lines), len(lines)
        config = replace(config, whole=options["lengths"] is None)
    else:
        vectors = read_embeddings(source)
        name, count = put_text(workbench, model, vectors), len(vectors)
    return replace(config, text=name, samples=given(options["samples"], count))


def _with_images(workbench: Workbench, config: MeasureConfig, source: str) -> MeasureConfig:
    """Put images on the workbench, as the model reads them; each is one sequence."""
    pixels = read_images(source, "all").pixels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told when the model is loaded for good
        model = workbench.model(config.model, config.device, config.dtype)
    name = f"images {source}"
    workbench.put(("ids", model.name, name), fitted(model, pixels[: config.samples]))
    return replace(config, text=name, lengths=(model.usual_length,))


def _load(console: Console, config: MeasureConfig | SpanConfig, workbench: Workbench) -> None:
    """Put the model and the text on the workbench; what a reader should know is printed."""
    with (
        warnings.catch_warnings(record=True) as notices,
        console.status(f"Loading {escape(config.model)} ..."),
    ):
        warnings.simplefilter("always")
        model = workbench.model(config.model, config.device, config.dtype)
        _tokenise(workbench, model, config.text)
        if isinstance(config, SpanConfig) or needs_double(workbench, model, config.part):
            model.doubled()
    for notice in {str(notice.message) for notice in notices}:
        say(console, f"Note: {notice}")
    if isinstance(config, SpanConfig):
        return
    for what, has in (("single heads", model.has_heads), ("proved bounds", model.has_bounds)):
        without = [str(i) for i in range(model.layers) if model.attends(i) and not has(i)]
        if without:
            say(console, f"Note: no {what} of layers {', '.join(without)}: {WHY}")


def _tokenise(workbench: Workbench, model: Model, text: str) -> None:
    try:
        text_ids(workbench, model, text)
    except ValueError as error:
        if "reads images" in str(error):
            raise ValueError(
                f"{model.name} reads images, not texts: pass --images FOLDER, FILE.npz or digits."
            ) from error
        if "without a tokenizer" not in str(error):
            raise
        raise ValueError(f"{model.name} came without a tokenizer: pass --ids FILE.") from error
