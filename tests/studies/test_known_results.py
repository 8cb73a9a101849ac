"""Nothing twice: rows of other folders serve as they are, and only where they are the same rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from toy_study import Config, Squares

from attnscope.studies import cache as module
from attnscope.studies import run
from attnscope.studies.cache import FILE, Cache


class Counted(Squares):
    """Squares that count how often they are computed."""

    ran: list[int]

    def run(self, cell: Any, workbench: Any) -> list[Any]:
        self.ran.append(cell.number)
        return super().run(cell, workbench)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(Counted, "ran", [], raising=False)
    return Counted()


def test_another_folder_costs_nothing(tmp_path: Path, counted: Counted) -> None:
    cache = Cache(tmp_path / "cache")
    for name, ran, there in (("a", 4, 0), ("b", 4, 4)):
        outcome = run(counted, Config(cells=4), folder=tmp_path / name, cache=cache, pictures=False)
        assert (len(counted.ran), outcome.taken_up, outcome.finished) == (ran, there, True)
    files = [(tmp_path / name / "results.csv").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]
    more = run(counted, Config(cells=6), folder=tmp_path / "c", cache=cache, pictures=False)
    assert counted.ran[4:] == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]  # six cells share the probability, so each has less
    assert more.taken_up == 0
    fewer = run(counted, Config(cells=3), folder=tmp_path / "d", cache=cache, pictures=False)
    assert (len(counted.ran), fewer.taken_up) == (10, 3)
    assert fewer.failure_probability == pytest.approx(3 * 1e-3 / 6)  # that of the rows used


def test_other_code_and_other_versions_share_nothing(
    tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    run(counted, Config(cells=1), cache=cache)
    run(counted, Config(cells=1), cache=cache)
    assert len(counted.ran) == 1
    with monkeypatch.context() as patched:
        patched.setattr(module, "source_hash", lambda: "other code")
        run(counted, Config(cells=1), cache=cache)
    assert len(counted.ran) == 2
    with monkeypatch.context() as patched:
        patched.setattr(module, "versions", lambda: {"torch": "1.0"})
        run(counted, Config(cells=1), cache=cache)
    assert len(counted.ran) == 3


@pytest.mark.parametrize("damage", ["letter", "file", "no folder"])
def test_a_damaged_cache_is_no_mistake(tmp_path: Path, counted: Counted, damage: str) -> None:
    cache = Cache(tmp_path)
    run(counted, Config(cells=2), cache=cache)
    cache.close()
    if damage == "letter":
        base = sqlite3.connect(tmp_path / FILE)
        base.execute("UPDATE known SET digest = 'x'")
        base.commit()
        base.close()
    elif damage == "file":
        (tmp_path / FILE).write_bytes(b"no database" * 1000)
    else:
        (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "below" if damage == "no folder" else tmp_path
    outcome = run(counted, Config(cells=2), cache=Cache(place))
    assert outcome.finished
    assert len(counted.ran) == 4


def test_the_user_names_it_or_turns_it_off(tmp_path: Path) -> None:
    assert Cache.of_user({"ATTNSCOPE_CACHE": "off"}) is None
    named = Cache.of_user({"ATTNSCOPE_CACHE": str(tmp_path / "mine")})
    usual = Cache.of_user({"XDG_CACHE_HOME": str(tmp_path)})
    assert named is not None
    assert usual is not None
    assert named.folder == tmp_path / "mine"
    assert usual.folder == tmp_path / "attnscope"


def test_the_oldest_results_make_room(
    tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    run(counted, Config(cells=8), cache=cache)
    base = sqlite3.connect(tmp_path / FILE)
    (size,) = base.execute("SELECT TOTAL(size) FROM known").fetchone()
    monkeypatch.setattr(module, "LARGEST", size - 1)
    Cache(tmp_path)
    assert 0 < base.execute("SELECT TOTAL(size) FROM known").fetchone()[0] <= size / 2
    base.close()
