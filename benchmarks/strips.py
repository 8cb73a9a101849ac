"""Does content attention earn its keep? Strips of digits, certified, against a tuned control.

A strip shows four digits: which of the last three is the same picture as the first, or of the same
class? Or five: which one has no twin? This can only be told by comparing tokens. The control is a
network with A = 0 from the first step on: its tokens mix by place, and an MLP can compare what was
mixed. Each is tuned over as many settings of the kind that suits it: every setting is trained on
strips of four fifths of the training digits and certified on strips of the others, with one seed,
with three where one layer is to find the very same picture. The setting with the largest certified
accuracy at a radius is then trained with five fresh seeds on all training digits and certified at
this radius on strips of test digits, which guided no choice.

Every training is one line of benchmarks/strips.jsonl with its date and versions, so that
`python -m benchmarks strips` goes on where it was stopped; remove the file to begin again. No
training is begun after `ATTNSCOPE_SECONDS` of CPU time; tasks that are not complete then are left
out. The strips of SVHN need its crops, which are not shipped: `ATTNSCOPE_SVHN` names their folder.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, pstdev
from typing import Any, NamedTuple

import torch

import attnscope
from attnscope.certification import certify
from attnscope.data import Images, images, local_images
from attnscope.data._set import part
from attnscope.data.strips import STRIPS, odd_ones, strips
from attnscope.files import write_atomically
from attnscope.nets import Config
from attnscope.studies.papers.certified_strips import COMPARING, MIXING
from attnscope.training import Recipe, Training

RESULTS = Path(__file__).parent / "strips.jsonl"
EPS = (0.1, 0.2)
BARS = {0.1: 15.0, 0.2: 5.0}
"""Points above the tuned control that are to be reached."""
VALIDATION, TEST = 100, 300
"""Strips that are certified to choose, and in the end."""
TUNING_SEEDS, SEEDS = (100, 101, 102), (0, 1, 2, 3, 4)
SIZES = {"digits": (1, 8), "svhn": (3, 32)}
"""Channels and side of a picture, which is one token."""
SVHN = "ATTNSCOPE_SVHN"
"""The variable of the environment that names a folder with SVHN."""


class Task(NamedTuple):
    """What is the same, how deep the networks are, and what strips are made of."""

    same: str
    depth: int
    pictures: str = "digits"

    def __str__(self) -> str:
        what = "the odd one" if self.same == "odd" else f"same {self.same}"
        of = "" if self.pictures == "digits" else f" of {self.pictures.upper()}"
        return f"{what}{of}, depth {self.depth}"


TASKS = (
    Task("picture", 1),
    Task("odd", 1),
    Task("class", 1),
    Task("picture", 2),
    Task("picture", 1, "svhn"),
    Task("class", 1, "svhn"),
)

LATE = {"loss": "certified", "delay": 0.6, "ramp": 0.3}
"""The loss with all remainders in it, once the task is learned: from the start a control finds
nothing.
"""
SEEN = {"learned_embedding": True}
"""Else a random isometry takes 3072 numbers of a large picture to some tens."""
GRID: dict[str, dict[str, Any]] = {
    "comparing": COMPARING,
    "comparing, sharper": COMPARING | {"cap": 0.6},
    "comparing, sharper, longer": COMPARING | {"cap": 0.6, "steps": 1000},
    "comparing, sharpest, longer": COMPARING | {"cap": 0.8, "steps": 1000},
    "comparing, cap 1.2, longer": COMPARING | {"cap": 1.2, "steps": 1000},
    "comparing, cap 1.6, longer": COMPARING | {"cap": 1.6, "steps": 1000},
    "mixing, longer": MIXING | {"steps": 1000},
    "mixing, round corners, longer": MIXING | {"half_width": 1.0, "steps": 1000},
    "mixing, rounder corners, longer": MIXING | {"half_width": 2.0, "steps": 1000},
    "mixing, round corners, four heads, longer": MIXING
    | {"half_width": 1.0, "heads": 4, "steps": 1000},
    "mixing, round corners, wide, longer": MIXING
    | {"half_width": 1.0, "heads": 4, "dim": 160, "hidden": 256, "steps": 1000},
    "mixing, round corners, writing less, longer": MIXING
    | {"half_width": 1.0, "value_cap": 0.7, "steps": 1000},
    "mixing, round corners, whole loss, late, longer": MIXING
    | {"half_width": 1.0, "steps": 1000, "rate": 0.005}
    | LATE,
    "mixing, round corners, whole loss, longer": MIXING
    | {"half_width": 1.0, "steps": 1000, "loss": "certified"},
    "comparing, sharpest, whole loss": COMPARING | {"cap": 0.8, "loss": "certified"},
    "comparing, sharpest, whole loss, longer": COMPARING
    | {"cap": 0.8, "steps": 1000, "loss": "certified"},
    "comparing, cap 1.2, whole loss": COMPARING | {"cap": 1.2, "loss": "certified"},
    "comparing, cap 1.2, whole loss, longer": COMPARING
    | {"cap": 1.2, "steps": 1000, "loss": "certified"},
    "mixing, round corners, wide, whole loss, longer": MIXING
    | {"half_width": 1.0, "heads": 4, "dim": 160, "hidden": 256, "steps": 1000}
    | {"loss": "certified"},
    "mixing, rounder corners, learned embedding, whole loss, longer": MIXING
    | {"half_width": 2.0, "steps": 1000, "loss": "certified"}
    | SEEN,
    "comparing, sharpest, whole loss, longest": COMPARING
    | {"cap": 0.8, "steps": 3000, "loss": "certified"},
    "comparing, cap 1.2, whole loss, longest": COMPARING
    | {"cap": 1.2, "steps": 3000, "loss": "certified"},
    "mixing, round corners, whole loss, longest": MIXING
    | {"half_width": 1.0, "steps": 3000, "loss": "certified"},
    "mixing, rounder corners, learned embedding, whole loss, longest": MIXING
    | {"half_width": 2.0, "steps": 3000, "loss": "certified"}
    | SEEN,
    "comparing, cap 1.6, whole loss, longest": COMPARING
    | {"cap": 1.6, "steps": 3000, "loss": "certified"},
    "mixing, round corners, wide, whole loss, longest": MIXING
    | {"half_width": 1.0, "heads": 4, "dim": 160, "hidden": 256, "steps": 3000}
    | {"loss": "certified"},
    "comparing, sharpest, learned embedding, longer": COMPARING
    | {"cap": 0.8, "steps": 1000}
    | SEEN,
    "comparing, cap 1.2, learned embedding, longer": COMPARING | {"cap": 1.2, "steps": 1000} | SEEN,
    "mixing, round corners, learned embedding, longer": MIXING
    | {"half_width": 1.0, "steps": 1000}
    | SEEN,
    "mixing, rounder corners, learned embedding, longer": MIXING
    | {"half_width": 2.0, "steps": 1000}
    | SEEN,
}
"""Settings by name, parts of the config and of the recipe. Heads that compare whole pictures and
write where they stand suit the network; with A = 0 this shape is a linear map. The control mixes
pictures, and an MLP sees their differences and squares them: the parabola of a round corner has no
remainder beyond the second order. The "whole loss" takes all remainders from the margin, not the
slope alone, which says nothing of the remainder of a second layer.
"""
FIRST = {
    True: [
        "comparing",
        "comparing, sharper",
        "comparing, sharper, longer",
        "comparing, sharpest, longer",
        "comparing, sharpest, whole loss, longer",
    ],
    False: [
        "mixing, longer",
        "mixing, round corners, longer",
        "mixing, rounder corners, longer",
        "mixing, round corners, four heads, longer",
        "mixing, round corners, whole loss, longer",
    ],
}
ROOM = {
    True: [
        "comparing, sharper, longer",
        "comparing, sharpest, longer",
        "comparing, cap 1.2, longer",
        "comparing, cap 1.6, longer",
        "comparing, sharpest, whole loss, longer",
        "comparing, cap 1.2, whole loss, longer",
        "comparing, cap 1.2, whole loss, longest",
    ],
    False: [
        *FIRST[False][1:],
        "mixing, round corners, wide, longer",
        "mixing, round corners, wide, whole loss, longer",
        "mixing, round corners, whole loss, longest",
    ],
}
"""Among five pictures heads must be sharper, and a control needs room for all pairs."""
MORE = {
    True: [
        *FIRST[True],
        "comparing, cap 1.2, longer",
        "comparing, sharpest, whole loss",
        "comparing, cap 1.2, whole loss",
    ],
    False: [
        *FIRST[False],
        "mixing, round corners, wide, longer",
        "mixing, round corners, writing less, longer",
        "mixing, round corners, whole loss, late, longer",
    ],
}
"""Where the first five of either side leave much to be found: classes, and two layers."""
HARDER = {
    True: [
        *FIRST[True],
        "comparing, cap 1.2, longer",
        "comparing, cap 1.2, whole loss, longer",
        "comparing, sharpest, whole loss, longest",
    ],
    False: [
        *FIRST[False],
        "mixing, round corners, wide, whole loss, longer",
        "mixing, rounder corners, learned embedding, whole loss, longer",
        "mixing, round corners, whole loss, longest",
    ],
}
"""For the first task, whose control is the one that gains most from room and from steps."""
CLASSES = {
    True: [
        *MORE[True],
        "comparing, sharpest, whole loss, longest",
        "comparing, cap 1.2, whole loss, longest",
        "comparing, cap 1.6, whole loss, longest",
    ],
    False: [
        *MORE[False],
        "mixing, round corners, wide, whole loss, longer",
        "mixing, round corners, whole loss, longest",
        "mixing, round corners, wide, whole loss, longest",
    ],
}
DEEP = {
    True: [*MORE[True], "comparing, sharpest, whole loss, longest"],
    False: [*MORE[False], "mixing, round corners, whole loss, longest"],
}
"""For two layers; the wide control was not trained for 3000 steps of them."""
LARGE = {
    True: [
        "comparing, cap 1.2, whole loss, longest",
        "comparing, sharpest, learned embedding, longer",
        "comparing, cap 1.2, learned embedding, longer",
        "comparing, sharpest, longer",
        "comparing, cap 1.2, longer",
        "comparing, sharpest, whole loss",
        "comparing, cap 1.2, whole loss",
        "comparing, sharpest, whole loss, longer",
        "comparing, cap 1.2, whole loss, longer",
    ],
    False: [
        "mixing, rounder corners, learned embedding, whole loss, longest",
        "mixing, round corners, longer",
        "mixing, rounder corners, longer",
        "mixing, round corners, learned embedding, longer",
        "mixing, rounder corners, learned embedding, longer",
        "mixing, round corners, wide, longer",
        "mixing, round corners, whole loss, late, longer",
        "mixing, round corners, whole loss, longer",
        "mixing, rounder corners, learned embedding, whole loss, longer",
    ],
}
"""For pictures of many numbers. The first three of either side are not tried on classes, which are
not learned: the first takes longest, and of the very same pictures the next two proved nothing for
the network, and for the control less than with a learned embedding.
"""


def settings(task: Task, content: bool) -> list[str]:
    """Those that are tried by network or control: as many of either kind."""
    if task.same == "odd":
        return ROOM[content]
    if task.pictures == "svhn":
        return LARGE[content][3 * (task.same == "class") :]
    if task.same == "class":
        return CLASSES[content]
    return (HARDER if task.depth == 1 else DEEP)[content]


def tuning_seeds(task: Task) -> tuple[int, ...]:
    """Those that choose: a single training says little of a control whose success depends on its
    seed, as it does where the very same picture is to be found.
    """
    several = task.same == "picture" and task.depth == 1
    return TUNING_SEEDS if several else TUNING_SEEDS[:1]


class OutOfTime(Exception):
    """No training may begin any more."""


class Missing(Exception):
    """The pictures are not on this machine."""


def recipe(task: Task, setting: str, content: bool, seed: int) -> Recipe:
    """What is trained."""
    given = {"heads": 2, "steps": 400, "batch": 64, "rate": 0.01, "eps": 0.2} | GRID[setting]
    given = {"delay": 0.3, "ramp": 0.4, "floor": 0.3, "cap": 0.35, "value_cap": 2.0} | given
    length, given["look"] = (5, "anywhere") if task.same == "odd" else (4, "near")
    parts = {name: value for name, value in given.items() if name in Config.__annotations__}
    channels, side = SIZES[task.pictures]
    classes = 5 if task.same == "odd" else 3
    config = Config.vit(
        (channels, side, side * length), classes, side, depth=task.depth, content=content, **parts
    )
    rest = {name: value for name, value in given.items() if name not in parts}
    return Recipe(config, seed=seed, **rest)


@functools.lru_cache(maxsize=2)
def data(task: Task, tuning: bool) -> tuple[Images, Images]:
    """Strips to train on and strips to certify, of different pictures."""
    source = task.pictures if task.pictures == "digits" else svhn()
    if not tuning:
        kind = "strips" if task.same == "picture" else f"strips-{task.same}"
        return images(f"{kind}:{source}", "train"), images(f"{kind}:{source}", "test").first(TEST)
    whole = images(source, "train")
    kept, held = (torch.from_numpy(part(of, whole.labels.numpy())) for of in ("train", "test"))
    learned, seen = (
        Images(whole.pixels[some], whole.labels[some], whole.classes, whole.name)
        for some in (kept, held)
    )
    if task.same == "odd":
        return odd_ones(learned, STRIPS["train"], 2), odd_ones(seen, VALIDATION, 3)
    return strips(learned, STRIPS["train"], task.same, 2), strips(seen, VALIDATION, task.same, 3)


def svhn() -> str:
    """What `attnscope.data.images` reads the crops from; nothing is downloaded."""
    named = os.environ.get(SVHN)
    found = Path(named) if named else local_images("svhn")
    if found is None or not found.exists():
        raise Missing(
            f"SVHN is not {f'at {named!r}' if named else 'in the cache of downloads'}: let {SVHN}"
            " name a folder with train_32x32.mat and test_32x32.mat, or with train.npz and"
            " test.npz."
        )
    return str(found)


def trained(task: Task, setting: str, content: bool, seed: int, tuning: bool) -> dict[str, Any]:
    """One training and what it certifies, in percent."""
    train, held = data(task, tuning)
    training = Training(recipe(task, setting, content, seed), train.pixels, train.labels)
    while training.progress < 1:
        training.advance()
    network = training.network.double().eval().requires_grad_(False)
    x, labels = held.pixels.double(), held.labels
    answers = {"certified": certify(network, x, EPS, labels)}
    if not tuning:
        answers["certified with A = 0"] = certify(network.with_content_off(), x, EPS, labels)
    return {
        "clean": 100 * float((network(x).argmax(1) == labels).double().mean()),
        **{
            name: [100 * mean(one.verdict for one in found) for found in several]
            for name, several in answers.items()
        },
        "norms of A": [norms.tolist() for norms in network.attention_norms()],
        "strips": len(held),
        "seconds": round(training.seconds, 1),
        "date": datetime.date.today().isoformat(),
        "versions": {"attnscope": attnscope.__version__, "torch": torch.__version__},
    }


def row(task: Task, setting: str, content: bool, seed: int, tuning: bool) -> dict[str, Any]:
    """From the file, or measured now and put there."""
    key = {
        "task": str(task),
        "setting": setting,
        "options": GRID[setting],
        "network": "network" if content else "control",
        "seed": seed,
        "phase": "tuning" if tuning else "final",
    }
    for line in _lines().splitlines():
        kept: dict[str, Any] = json.loads(line)
        if all(kept[name] == value for name, value in key.items()):
            return kept
    if time.process_time() > float(os.environ.get("ATTNSCOPE_SECONDS", "inf")):
        raise OutOfTime
    made = key | trained(task, setting, content, seed, tuning)
    write_atomically(RESULTS, _lines() + json.dumps(made) + "\n")
    return made


def _lines() -> str:
    """The file as it is now: another process may have put its rows there in the meantime."""
    return RESULTS.read_text() if RESULTS.exists() else ""


def tuned(task: Task, content: bool, place: int) -> str:
    """The setting that certifies most at this radius on strips of other training digits."""
    found = {
        name: mean(
            row(task, name, content, seed, True)["certified"][place] for seed in tuning_seeds(task)
        )
        for name in settings(task, content)
    }
    return max(found, key=found.__getitem__)


def final(task: Task) -> Iterator[tuple[float, dict[str, list[float]]]]:
    """Certified accuracies of the fresh seeds at each radius, of network and control."""
    for place, eps in enumerate(EPS):
        shares = {}
        for name, content in (("network", True), ("control", False)):
            setting = tuned(task, content, place)
            rows = [row(task, setting, content, seed, False) for seed in SEEDS]
            shares[name] = [one["certified"][place] for one in rows]
        yield eps, shares


def main() -> dict[str, Any]:
    """How far the control stays behind, and how far it must."""
    torch.set_num_threads(1)
    made: dict[str, Any] = {}
    for task in TASKS:
        try:
            found = dict(final(task))
        except OutOfTime:
            print(
                f"strips: {task} and what comes after it is left out, time is up", file=sys.stderr
            )
            break
        except Missing as missing:
            print(f"strips: {task} is LEFT OUT. {missing}", file=sys.stderr)
            continue
        for eps, shares in found.items():
            ahead = mean(shares["network"]) - mean(shares["control"])
            line: dict[str, Any] = {"value": -ahead, "spread": {}}
            for name, of in shares.items():
                line[name] = mean(of)
                line["spread"][name] = pstdev(of)
            line["at most"] = -BARS[eps]
            made[f"strips, {task}: certified at {eps:g}, control less network, in points"] = line
    return made
