"""A folder from somebody else can neither lead out of itself nor be believed when it is damaged."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_study import Config, Squares

from attnscope.studies import StoreError, run
from attnscope.studies._packing import pack
from attnscope.studies.export import Filter, export
from attnscope.studies.recovery import recover
from attnscope.studies.status import status
from attnscope.studies.store import FILE, Damaged, is_plain_name

CONFIG = Config(cells=20, rows=40)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "original"
    run(Squares(), CONFIG, folder=folder, pictures=False)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "results"))


def changed(folder: Path, statement: str, *values: object) -> None:
    base = sqlite3.connect(folder / FILE)
    base.execute(statement, values)
    base.commit()
    base.close()


@pytest.mark.parametrize(
    "name",
    ["../victim.txt", "/{}/victim.txt", "..", ".hidden", "a/b.txt", "a\\b", FILE, "x\n", "", "c:x"],
)
def test_no_name_leads_out_of_the_folder(folder: Path, name: str) -> None:
    victim = folder.parent / "victim.txt"
    victim.write_text("mine")
    name = name.format(folder.parent)
    assert not is_plain_name(name)
    changed(folder, "INSERT OR REPLACE INTO files VALUES (?)", name)
    run(Squares(), Config(cells=1), folder=folder, overwrite=True, pictures=False)
    assert victim.read_text() == "mine"
    assert (folder / FILE).exists()


@pytest.mark.parametrize("kind", ["../victim", "/{}/victim", "sub/victim"])
def test_no_kind_of_row_becomes_a_file_elsewhere(folder: Path, kind: str) -> None:
    victim = folder.parent / "victim.csv"
    victim.write_text("mine")
    rows = pack([(kind.format(folder.parent), {"a": 1})])
    changed(folder, "UPDATE cells SET content = ?, digest = ?", rows.content, rows.digest)
    with pytest.raises(StoreError, match="no file of this folder: nothing was written"):
        export(folder, "csv")
    assert victim.read_text() == "mine"
    with pytest.raises(Damaged, match="rows of a kind"):
        run(Squares(), CONFIG, folder=folder, pictures=False)


def test_links_are_replaced_or_refused_and_never_followed(folder: Path) -> None:
    victim = folder.parent / "victim.txt"
    victim.write_text("mine")
    (folder / "results.csv").unlink()
    (folder / "results.csv").symlink_to(victim)
    export(folder, "csv")
    assert victim.read_text() == "mine"
    assert not (folder / "results.csv").is_symlink()
    (folder / FILE).rename(folder.parent / "other.sqlite")
    (folder / FILE).symlink_to(folder.parent / "other.sqlite")
    for use in (status, recover, lambda place: export(place, "csv")):
        with pytest.raises(StoreError, match=r"is a link|holds no results"):
            use(folder)


def test_rows_that_cannot_be_read_are_one_sentence(folder: Path) -> None:
    rows = pack([("results", {"a": 1})])
    forged = rows.content[:8] + b"no zlib"
    digest = hashlib.sha256(forged).hexdigest()
    changed(folder, "UPDATE cells SET content = ?, digest = ?", forged, digest)
    with pytest.raises(Damaged, match="cannot be read"):
        export(folder, "csv")


def torn(content: bytearray, page: int) -> None:
    content[4096 * page : 4096 * (page + 1)] = random.Random(0).randbytes(4096)


DAMAGES: dict[str, Callable[[bytearray], None]] = {
    "the first page": lambda content: torn(content, 0),
    "one of the last pages": lambda content: torn(content, len(content) // 4096 - 2),
    "the end of the file": lambda content: content.__delitem__(slice(-2 * 4096, None)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_whole_comes_back(folder: Path, damage: str) -> None:
    before = (folder / "results.csv").read_bytes()
    content = bytearray((folder / FILE).read_bytes())
    DAMAGES[damage](content)
    (folder / FILE).write_bytes(content)
    with pytest.raises(Damaged, match="attnscope recover"):
        run(Squares(), CONFIG, folder=folder, pictures=False)
    found = recover(folder)
    assert found.kept.read_bytes() == content
    assert found.cells > 0
    outcome = run(Squares(), CONFIG, folder=folder, pictures=False)
    assert (outcome.finished, outcome.taken_up) == (True, found.cells)
    assert (folder / "results.csv").read_bytes() == before


def test_what_is_no_store_is_not_recovered(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"nothing" * 10_000)
    with pytest.raises(StoreError, match="whose results it holds is lost"):
        recover(tmp_path)
    assert (tmp_path / FILE).read_bytes() == b"nothing" * 10_000
    with pytest.raises(StoreError, match="holds no results"):
        recover(tmp_path / "nowhere")


def test_status_counts_cells_rows_and_failures(folder: Path) -> None:
    found = status(folder)
    assert (found.study, found.at_work, found.planned, found.finished) == ("squares", False, 20, 20)
    assert (found.rows, found.failed, found.left) == (20 * 41, 0, 0)
    assert found.failure_probability == pytest.approx(1e-3)
    changed(folder, "DELETE FROM cells WHERE place > 4")
    for number in range(3):
        reason = "a" if number else "b"
        values = (str(number), number, "{}", reason, 0.0, 0.0)
        changed(folder, "INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?)", *values)
    found = status(folder)
    assert (found.finished, found.left, found.reasons) == (5, 12, [("a", 2), ("b", 1)])


def test_parquet_and_chosen_rows(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(folder, "parquet") == ["results.parquet", "curves.parquet"]
    table = parquet.read_table(folder / "results.parquet").to_pylist()
    assert [row["square"] for row in table] == [i**2 / 7 for i in range(800)]
    assert Filter(model="m", layers=(1,), lengths=(2,)).takes({"model": "m", "layer": 1, "n": 2})
    for row in ({"model": "x", "layer": 1, "n": 2}, {"model": "m", "layer": 0, "n": 2}, {}):
        assert not Filter(model="m", layers=(1,), lengths=(2,)).takes(row)
    assert export(folder, "csv", Filter(model="none")) == []
