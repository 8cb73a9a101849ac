"""A small share of the hostile cases runs with the tests; `python -m fuzz` runs as many as one
likes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from fuzz import children
from fuzz.cases import case

ROOT = Path(__file__).parents[1]
CASES = 80


def test_hostile_cases_end_in_a_sentence() -> None:
    """In a process of its own: the shape checks of the tests would refuse bad calls first."""
    paths = [str(ROOT / "src"), str(ROOT)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fuzz",
            "--cases",
            str(CASES),
            "--seed",
            "7",
            "--seconds",
            "0.5",
            "--brief",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert f"{CASES} cases" in done.stdout


def test_a_case_depends_on_its_two_numbers_alone() -> None:
    from fuzz import cases, lines

    titles = [case(5, number).title for number in (3, 4, 3)]
    assert titles[0] == titles[2] != titles[1]
    assert set(lines.commands()) >= {"measure", "flow", "train", "variants"}
    assert cases.case(6, 3).title != titles[0]


def _nothing() -> None:
    pass


def _refused() -> None:
    print("attnscope: this is no such thing: choose another.", file=sys.stderr)
    sys.exit(2)


def _traceback() -> None:
    raise RuntimeError("a bug")


def _wrong_code() -> None:
    sys.exit(3)


def _nan() -> None:
    Path("results.csv").write_text("n,lower\n2,nan\n")


def _given() -> None:
    _nan()
    os.utime("results.csv", (children.GIVEN, children.GIVEN))


def _folder() -> None:
    print("In NaN: results.csv\nTo look at: NaN/report.html")


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hungry() -> None:
    bytearray(8 * 2**30)


def _two_lines() -> None:
    print("attnscope: one line of the two\nand the other, which is too much", file=sys.stderr)
    sys.exit(2)


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (_nothing, "ok"),
        (_refused, "refused"),
        (_traceback, "traceback"),
        (_wrong_code, "wrong exit code"),
        (_nan, "silent NaN"),
        (_given, "ok"),
        (_folder, "ok"),
        (_crash, "crash"),
        (_hungry, "traceback"),
        (_two_lines, "long refusal"),
    ],
)
def test_every_kind_of_failure_is_seen(task: object, kind: str) -> None:
    assert children.run(task, 20).kind == kind  # type: ignore[arg-type]


def test_a_long_task_is_ended_and_a_deaf_one_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    def busy() -> None:
        while True:
            pass

    assert children.run(busy, 0.1).kind == "ended"
    assert children.run(lambda: time.sleep(60), 0.02).kind == "ended"
    monkeypatch.setattr(children, "GRACE", 0.5)
    assert children.run(deaf, 0.05).kind == "timeout"


@pytest.mark.parametrize("name", ["npy", "npz", "network", "model", "pictures", "text", "ids"])
def test_files_are_the_same_from_the_same_randomness(name: str) -> None:
    from fuzz import workshop

    assert workshop.chosen(name, Random(4)) == workshop.chosen(name, Random(4))
