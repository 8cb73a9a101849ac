"""`fit`: from a recipe and images to a trained network in a folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from attnscope.bounds import NoBound
from attnscope.certification import certify
from attnscope.data.pictures import Images
from attnscope.nets import Transformer, save
from attnscope.training.files import STATE, Log, store, take_up
from attnscope.training.recipe import Recipe
from attnscope.training.training import Seen, Training

LOG_EVERY = 20
"""Steps between two lines of the log."""
LOOKS = 5
"""How often the network is evaluated on its way."""
STORE_SECONDS = 30.0
"""Time between two checkpoints."""


@final
@dataclass(frozen=True)
class Look:
    """The network on images held out: shares of them. `certified` is proved at the recipe's eps,
    None when a layer has no bound.
    """

    images: int
    clean: float
    certified: float | None
    content_off: float
    """Clean accuracy when A is set to 0 in every attention layer."""
    content_norms: list[list[float]]
    r"""$\\|A_h\\|$ by layer and head."""


def look(network: Transformer, images: Images, eps: float) -> Look:
    """Evaluate a network, in float64."""
    labels = images.labels
    exact = Transformer(network.config).double()
    exact.load_state_dict({name: value.cpu() for name, value in network.state_dict().items()})
    exact.eval().requires_grad_(False)
    pixels = images.pixels.double()
    right = exact(pixels).argmax(-1) == labels
    off = exact.with_content_off()(pixels).argmax(-1) == labels
    try:
        proved = certify(exact, pixels, eps, labels)
        certified: float | None = sum(one.verdict for one in proved) / len(labels)
    except NoBound:
        certified = None
    norms = [part.tolist() for part in exact.attention_norms()]
    return Look(
        len(labels), right.double().mean().item(), certified, off.double().mean().item(), norms
    )


@final
@dataclass(frozen=True)
class Progress:
    """Where a training stands: part of the budget spent, the last step, the last look."""

    part: float
    seen: Seen | None
    looked: Look | None


def fit(
    recipe: Recipe,
    data: Images,
    held_out: Images,
    folder: Path,
    *,
    source: str | None = None,
    resume: bool = False,
    device: str = "cpu",
    watch: Callable[[Progress], bool] = lambda _: True,
) -> Look:
    """Train, keep a checkpoint every half minute, leave network, log and notes in the folder;
    return the last look.

    `source` says in the notes what `data` can be read from again.

    `watch` is told after every step how it stands and returns whether to go on; when it says no, or
    raises, the checkpoint is kept and `resume=True` takes it up. With a budget in steps the resumed
    network equals the uninterrupted one.
    """
    training = Training(recipe, data.pixels, data.labels, device)
    folder.mkdir(parents=True, exist_ok=True)
    if resume:
        take_up(training, folder)
    log = Log(folder, training.step)
    try:
        looked, going = _run(training, held_out, folder, log, watch)
    finally:
        log.close()
    finished = going and training.progress >= 1
    save(training.network, folder, notes(training, source or data.name, looked, finished))
    if finished:
        (folder / STATE).unlink(missing_ok=True)
    return looked


def _run(
    training: Training, held_out: Images, folder: Path, log: Log, watch: Callable[[Progress], bool]
) -> tuple[Look, bool]:
    stored, next_look, looked, going = (
        time.monotonic(),
        (int(training.progress * LOOKS) + 1) / LOOKS,
        None,
        True,
    )
    try:
        while going and training.progress < 1:
            seen = training.advance()
            if training.step % LOG_EVERY == 0:
                log.add({**seen._asdict(), "seconds": round(training.seconds, 3)})
            if next_look <= training.progress < 1:
                next_look += 1 / LOOKS
                looked = look(training.network, held_out, training.recipe.eps)
                log.add({"step": training.step, **dataclasses.asdict(looked)})
            if time.monotonic() - stored > STORE_SECONDS:
                store(training, folder)
                stored = time.monotonic()
            going = watch(Progress(training.progress, seen, looked))
    finally:
        store(training, folder)
    looked = look(training.network, held_out, training.recipe.eps)
    log.add({"step": training.step, **dataclasses.asdict(looked)})
    return looked, going


def notes(training: Training, data: str, looked: Look, finished: bool) -> dict[str, Any]:
    """How the network came to be and what it reached on the images held out."""
    recipe = {name: value for name, value in training.recipe.as_dict().items() if name != "config"}
    return {
        "data": data,
        **recipe,
        "steps_done": training.step,
        "seconds": round(training.seconds, 1),
        "finished": finished,
        "held_out": dataclasses.asdict(looked),
    }
