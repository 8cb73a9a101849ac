"""`attnscope certify CHECKPOINT`: certified accuracy of a vision transformer, with the attack and
the controls beside it.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape

from attnscope.cli._run import OUT, OVERWRITE, execute, folder_of
from attnscope.data.pictures import SOURCES, SPLITS
from attnscope.studies.certify import Certify, CertifyConfig
from attnscope.studies.certify.smoothing import METHODS
from attnscope.studies.certify.study import NoData
from attnscope.studies.certify.summary import broken_certificates


def command(
    checkpoint: str | None = typer.Argument(
        None,
        help=(
            "Folder of a trained network, or of a Hugging Face ViT or DeiT classifier (default: the"
            " digits network that ships with attnscope)."
        ),
    ),
    data: str | None = typer.Option(
        None,
        help=f"{SOURCES} (default: what the network was trained on).",
    ),
    split: str = typer.Option("test", help="Which images: train, test or all."),
    images: int = typer.Option(100, min=1, help="How many images, from the first on."),
    eps: str = typer.Option(
        "36/255,72/255,108/255",
        help="Radii in l2 of pixels in [0, 1]: numbers or fractions, separated by commas.",
    ),
    control: str | None = typer.Option(
        None,
        help="Folder of the control (default: the one beside the checkpoint, if any).",
    ),
    steps: int = typer.Option(100, min=1, help="Steps of the attack."),
    restarts: int = typer.Option(
        5, min=1, help="Starts of the attack, the image itself and random ones."
    ),
    builder: str | None = typer.Option(
        None,
        help=(
            "package.module:function, code of your own that returns a torch.nn.Module; CHECKPOINT"
            " is then the safetensors file of its weights."
        ),
    ),
    method: str = typer.Option(
        "proof",
        help=(
            "proof; smoothing (randomized smoothing of any classifier: probable, and about the"
            " smoothed classifier); or both, in one table."
        ),
    ),
    sigma: float | None = typer.Option(None, help="Standard deviation of the smoothing noise."),
    samples: int = typer.Option(1000, min=1, help="Noisy copies of each image for smoothing."),
    alpha: float = typer.Option(
        0.001, help="Probability with which the radius of one smoothed image may be wrong."
    ),
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads (default: torch's own choice)."
    ),
    seed: int = typer.Option(0, min=0, help="Seed of the attack."),
    out: str | None = typer.Option(None, help=f"{OUT} (Default: certify-CHECKPOINT.)"),
    overwrite: bool = typer.Option(False, "--overwrite", help=OVERWRITE),
) -> None:
    """How far can an image be changed before this network may read it otherwise? Proved, and
    attacked.

    Certifies images against every l2 perturbation up to eps, next to a PGD attack, the norms of A,
    the accuracy with A set to 0 and a control without content attention. Leaves tables, figures,
    certificates.jsonl and certificates.csv. Ctrl-C keeps what was certified, and the same command
    again goes on where it stopped. A certificate that the attack breaks would be a bug and ends
    with exit code 1.
    """
    options = dict(locals())
    if threads is not None:
        torch.set_num_threads(threads)
    if split not in SPLITS:
        raise ValueError(f"--split must be one of {', '.join(SPLITS)}, got {split!r}.")
    if method not in METHODS:
        raise ValueError(f"--method must be one of {', '.join(METHODS)}, got {method!r}.")
    if (sigma is None) != (method == "proof"):
        raise ValueError(
            "--method smoothing needs --sigma, the standard deviation of the noise in every pixel;"
            " --sigma needs --method smoothing or both."
        )
    radii = parsed_eps(eps)
    config = CertifyConfig(
        checkpoint=checkpoint,
        data=data,
        split=split,
        images=images,
        eps=tuple(radii),
        eps_names=tuple(radii.values()),
        control=control,
        steps=steps,
        restarts=restarts,
        seed=seed,
        builder=builder,
        method=method,
        sigma=sigma,
        samples=samples,
        alpha=alpha,
    )
    folder = folder_of(out, "certify", str(Path(checkpoint).resolve()) if checkpoint else "digits")
    try:
        outcome = execute(Certify(), config, folder=folder, overwrite=overwrite, options=options)
    except NoData as error:
        raise ValueError(f"{error} Pass --data.") from error
    unsound = broken_certificates(outcome.table.rows)
    if unsound:
        _alarm(f"{unsound} The results are in {folder}.")
        raise typer.Exit(1)
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)


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


def _alarm(sentence: str) -> None:
    """A broken certificate is said on the stream of errors, in red, whatever else is printed."""
    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(
        f"[bold white on red] UNSOUND [/] {escape(sentence)}"
    )
