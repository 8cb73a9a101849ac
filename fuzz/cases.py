"""Case K of seed S: a command line, a command that reads a hostile file, or a call."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fuzz.children import GIVEN

GOODS: dict[str, Path] = {}
"""Files that are as they should be, made once by `prepare`."""

DRAWS = 0.25
"""The share of commands that run where figures can be drawn."""


class Case(NamedTuple):
    """Something to try: its sort ("commands", "files" or "calls"), what it is about, how a reader
    would type it, and the task itself.
    """

    sort: str
    about: str
    title: str
    task: Callable[[], object]


def prepare(warm: bool = True) -> None:
    """Import everything once and make the good files, so that children start at once; `warm` also
    runs each command once.
    """
    os.environ.update(COLUMNS="200", HF_HUB_OFFLINE="1", TERM="dumb", NO_COLOR="1")
    import torch

    torch.set_num_threads(1)
    from fuzz import calls
    from fuzz.goods import goods

    calls.warm()
    if not GOODS:
        folder = Path(tempfile.mkdtemp(prefix="fuzz-goods-"))
        owner = os.getpid()
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
        GOODS.update(goods(folder))
        if warm:
            _warm(folder / "warm")


def _warm(folder: Path) -> None:
    """Run each command once with good options, so that children find every import done."""
    from fuzz import lines

    folder.mkdir()
    silent = io.StringIO()
    with contextlib.chdir(folder), redirect_stdout(silent), redirect_stderr(silent):
        for name, command in lines.commands().items():
            if len(command.params) < 5:  # prints a table
                continue
            words = lines.line(Random(0), GOODS, f"{name} -", rare=0.0)
            with contextlib.suppress(SystemExit):
                _main([*words, *(["--threads", "1"] if name == "measure" else [])])


def case(seed: int, number: int) -> Case:
    """The same case for the same two numbers, whatever ran before."""
    from fuzz import calls

    rng = Random(f"{seed}:{number}")
    sort = rng.choices(("commands", "files", "calls"), (4, 3, 3))[0]
    if sort == "calls":
        name, title, task = calls.call(rng)
        return Case(sort, name, title, task)
    made = _command(rng) if sort == "commands" else _file(rng)
    return made if rng.random() < DRAWS else _without_matplotlib(made)


def _without_matplotlib(made: Case) -> Case:
    """The same on a machine that cannot draw: it keeps its data, and takes half the time."""

    def task() -> None:
        from attnscope.studies import drawing

        drawing.available = lambda: False
        made.task()

    return made._replace(title=f"{made.title}  # without matplotlib", task=task)


def _command(rng: Random) -> Case:
    from fuzz import lines

    words = lines.line(rng, GOODS)
    return Case("commands", words[0], "attnscope " + _typed(words), lambda: _main(words))


def _file(rng: Random) -> Case:
    from fuzz import lines, workshop

    name, option, kind = rng.choice(
        [
            (command, option.name, kind)
            for command, described in lines.commands().items()
            for option in described.params
            for kind in workshop.READ_BY.get(option.name, ())
        ]
    )
    words = lines.line(rng, GOODS, f"{name} {option}")
    inner = rng.getrandbits(64)
    what = workshop.chosen(kind, Random(inner))
    title = f"attnscope {_typed(words)}  # HOSTILE-FILE: {kind}, {what}"

    def task() -> None:
        made = workshop.make(kind, Random(inner), GOODS, Path("given"))
        for file in Path("given").rglob("*"):
            os.utime(file, (GIVEN, GIVEN), follow_symlinks=False)
        _main([word.replace("HOSTILE-FILE", str(made)) for word in words])

    return Case("files", name, title, task)


def _main(words: list[str]) -> Any:
    from attnscope.cli import main

    main(words)


def _typed(words: list[str]) -> str:
    return shlex.join(words).encode("utf-8", "backslashreplace").decode()
