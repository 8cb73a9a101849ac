"""`python -m fuzz.kills --kills 40 --seed S`: SIGKILL and SIGTERM at random moments of commands.

After every signal no finished row is lost; the same command again completes and leaves what an
undisturbed run leaves. A command joins by a line in `lines`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

NUMBERS = (".jsonl", ".npz", ".safetensors")
"""Files that two runs of one command must have in common."""
PROGRAM = (sys.executable, "-c", "from attnscope.cli import main; main()")


class Line(NamedTuple):
    """A command that is killed. `again` is what the same command needs to go on, where it does not
    do so by itself.
    """

    words: tuple[str, ...]
    again: str = ""


def lines(goods: dict[str, Path]) -> dict[str, Line]:
    """What is killed, by name: a few seconds each."""
    return {
        "measure": Line(
            ("measure", str(goods["MODEL"]), "--text", str(goods["TEXT"]), "--lengths", "2:24:1",
             "--samples", "4", "--threads", "1"),
        ),
        "flow": Line(("flow", "--particles", "24", "--frames", "6", "--time", "4")),
        "attack": Line(
            ("attack", "--lengths", "2,4,8", "--tokens", "8", "--starts", "4", "--steps", "20",
             "--dim", "4", "--threads", "1"),
        ),
        "certify": Line(
            ("certify", str(goods["NETWORK"]), "--images", "12", "--steps", "10", "--restarts", "2",
             "--threads", "1"),
        ),
        "invert": Line(("invert", "--layers", "12", "--most", "60")),
        "train": Line(
            ("train", "--data", "digits", "--steps", "60", "--watched", "4", "--hidden", "8"),
            "--resume",
        ),
        "trace": Line(
            ("trace", str(goods["MODEL"]), "--text", str(goods["TEXT"]), "--tokens", "8",
             "--samples", "6", "--threads", "1"),
        ),
        "sweep": Line(("sweep", str(goods["STUDY"]))),
        "reproduce": Line(("reproduce", "euler_order", "line", "pushforward")),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="signals in all")
    parser.add_argument("--seed", type=int, default=0, help="which moments")
    parser.add_argument("--only", help="one command alone")
    asked = parser.parse_args()
    from fuzz.goods import goods

    rng, wrong, sent = Random(asked.seed), list[str](), 0
    with tempfile.TemporaryDirectory(prefix="fuzz-kills-") as made:
        place = Path(made)
        (place / "goods").mkdir()
        known = lines(goods(place / "goods"))
        chosen = {asked.only: known[asked.only]} if asked.only else known
        for number, (name, line) in enumerate(chosen.items()):
            share = asked.kills // len(chosen) + (number < asked.kills % len(chosen))
            faults = _torment(name, line, share, rng, place)
            wrong += faults
            sent += share
            print(
                "\n".join([f"{name}: {share} signals, {len(faults)} faults", *faults]), flush=True
            )
    print(f"{sent} signals: {len(wrong)} faults")
    return int(bool(wrong))


def _torment(name: str, line: Line, kills: int, rng: Random, place: Path) -> list[str]:
    """Kill the command so many times, each time letting it go on; what was wrong."""
    whole, cut = place / f"{name}-whole", place / f"{name}-cut"
    begun = time.monotonic()
    done = _start(line.words, whole)
    if done.wait() != 0:
        return [f"{name}: the undisturbed run ends with exit code {done.returncode}"]
    seconds, wrong = time.monotonic() - begun, list[str]()
    for number in range(kills):
        which = rng.choice((signal.SIGKILL, signal.SIGTERM))
        before = _rows(cut)
        running = _start((*line.words, *_going_on(line, cut)), cut)
        try:
            code = running.wait(rng.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(which)
            code = running.wait()
        if lost := before - _rows(cut):
            wrong.append(f"{name}, signal {number}: {len(lost)} rows lost")
        if code not in (0, -signal.SIGKILL, -signal.SIGTERM, 143):
            said = running.stderr.read().decode(errors="replace") if running.stderr else ""
            wrong.append(f"{name}, signal {number}: exit code {code}\n{said[-3000:]}")
        if code == 0:
            wrong += _differences(name, whole, cut)
            shutil.rmtree(cut)
    wrong += _finish(name, line, whole, cut)
    return wrong


def _finish(name: str, line: Line, whole: Path, cut: Path) -> list[str]:
    code = _start((*line.words, *_going_on(line, cut)), cut).wait()
    if code != 0:
        return [f"{name}: the same command again ends with exit code {code}"]
    return _differences(name, whole, cut)


def _differences(name: str, whole: Path, cut: Path) -> list[str]:
    """Files of numbers that are not those of the undisturbed run; it must have left some. The log
    of a training says where it was interrupted, and may differ.
    """
    from attnscope.training.files import LOG

    one, other = (
        {file.relative_to(place) for suffix in NUMBERS for file in place.rglob(f"*{suffix}")}
        - {Path(LOG)}
        for place in (whole, cut)
    )
    if not one:
        return [f"{name}: the undisturbed run left no file of numbers"]
    return [
        f"{name}: {file} is not that of an undisturbed run"
        for file in sorted(one | other)
        if file not in one & other or not _same(whole / file, cut / file)
    ]


def _same(one: Path, other: Path) -> bool:
    """Equal rows but for the seconds they took; of archives, whose entries carry dates, equal
    arrays; of anything else equal bytes.
    """
    if one.suffix == ".jsonl":
        return _timeless(one) == _timeless(other)
    if one.suffix != ".npz":
        return one.read_bytes() == other.read_bytes()
    import numpy as np

    with np.load(one) as first, np.load(other) as second:
        return first.files == second.files and all(
            np.array_equal(first[key], second[key]) for key in first.files
        )


def _timeless(file: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in json.loads(line).items() if not name.endswith("seconds")}
        for line in file.read_text().splitlines()
    ]


def _going_on(line: Line, folder: Path) -> tuple[str, ...]:
    """What the command needs to go on: of training, --resume once there is a checkpoint."""
    from attnscope.training.files import STATE

    if not line.again or not folder.exists() or not any(folder.iterdir()):
        return ()
    return (line.again,) if (folder / STATE).exists() else ("--overwrite",)


def _rows(folder: Path) -> set[str]:
    """The rows that are stored there or in folders of it, read from a copy as `attnscope export`
    does.
    """
    from attnscope.studies.export import export
    from attnscope.studies.store import FILE

    if not folder.exists():
        return set()
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "copy"
        shutil.copytree(folder, copy)
        for left in copy.rglob("*.jsonl"):
            left.unlink()
        for store in copy.rglob(FILE):
            with contextlib.suppress(ValueError):  # nothing stored yet
                export(store.parent, "jsonl")
        return {
            f"{file.parent.name} {row}"
            for file in copy.rglob("*.jsonl")
            for row in file.read_text().splitlines()
        }


def _start(words: tuple[str, ...], out: Path) -> subprocess.Popen[bytes]:
    """Rows of other folders are not taken up: they would leave nothing to interrupt."""
    return subprocess.Popen(
        [*PROGRAM, *words, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"ATTNSCOPE_CACHE": "off"},
    )


if __name__ == "__main__":
    sys.exit(main())
