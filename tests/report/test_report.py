"""Pages are whole, harmless, and say what is missing."""

from __future__ import annotations

import html
import importlib
import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import HOSTILE, PIECES, measured, row
from tests.studies.toy_study import Config, Squares

from attnscope.cli import main
from attnscope.report import FILE, figures, of_folder
from attnscope.report.axes import Axis
from attnscope.report.comparison import html_of_comparison
from attnscope.report.markup import data, number, tag
from attnscope.report.page import html_of
from attnscope.report.run import Run
from attnscope.report.vector import NotSvg, inlined
from attnscope.report.view import View, find
from attnscope.studies import Table, drawing, run
from attnscope.studies import find as studies
from attnscope.studies.compare import Comparison, Loaded, Series, Value
from attnscope.studies.flow import Flow, FlowConfig
from attnscope.studies.invert import Invert

pytest.importorskip("matplotlib")
LARGEST_DEMO = 3_000_000


def written(table: Table, folder: Path) -> str:
    return table.report(folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure at hand for tests that are not about drawing, which takes seconds."""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text>figure</text></svg>'
    monkeypatch.setattr(figures, "_drawn", lambda table, without: {"figure.svg": svg})


@pytest.fixture(scope="module")
def flow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was computed, and its folder."""
    folder = tmp_path_factory.mktemp("flow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "available", lambda: False)
        run(Flow(), Flow.fast, folder=folder)
    return folder


@pytest.fixture
def flow(flow_folder: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(flow_folder, tmp_path / "run"))


def test_markup_is_escaped_once() -> None:
    assert (
        tag("p", "<b>", tag("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    )
    assert "\\x00" in tag("p", "a\x00b")
    assert "\\xdc80" in tag("p", "\udc80")
    held = data("x", {"a": HOSTILE, "b": [float("inf"), 1.5]})
    assert held.count("<") == 2
    content = json.loads(re.search(r">(.*)<", held)[1])  # type: ignore[index]
    assert content == {"a": HOSTILE, "b": ["infinite", 1.5]}
    assert number(123456789.0) == "1.235e+08"


@pytest.mark.usefixtures("drawn")
def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    page = written(measured(), tmp_path)
    assert HOSTILE not in page
    assert page.count(html.escape(HOSTILE)) > 2
    assert "<img src=x" not in page
    # one script that runs, and data
    assert len(re.findall(r"<script>", page)) == 1
    assert set(re.findall(r"<script[^>]*type=\"([^\"]*)\"", page)) == {"application/json"}
    held = re.search(r'id="rows-directions-rows">(.*?)</script>', page)
    assert held is not None
    assert PIECES[2] in {line[4] for line in json.loads(held[1])}


def test_nothing_in_a_figure_can_run() -> None:
    drawn = b"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
        viewBox="0 0 100 50" onload="alert(1)"><defs><path id="p" d="M0 0"/></defs>
        <script>alert(2)</script><foreignObject><b/></foreignObject>
        <a href="javascript:alert(3)"><text>x</text></a><style>body{display:none}</style>
        <use xlink:href="#p" style="fill: #000000; clip-path: url(#c)"/>
        <image href="https://example.org/a.png"/><text>kept &lt;b&gt;</text></svg>"""
    made = inlined(drawn, "one-", 'a "figure"')
    assert not re.search(r"alert|onload|foreignObject|javascript|example\.org|display", made)
    assert 'id="one-p"' in made
    assert "#one-p" in made
    assert "url(#one-c)" in made
    assert "currentColor" in made
    assert "kept &lt;b&gt;" in made
    for wrong in (b"", b"<html/>", b"<!DOCTYPE x [<!ENTITY a 'b'>]><svg>&a;</svg>", b"<svg" * 9):
        with pytest.raises(NotSvg):
            inlined(wrong, "", "")


@pytest.mark.parametrize("log", [False, True])
def test_axes_hold_their_values_and_round_ticks(log: bool) -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        values = np.exp(generator.normal(0, 4, 3)).tolist()
        axis = Axis.over([*values, None, float("nan")], 10, 300, log)
        assert all(10 < axis.at(value) < 300 for value in values)
        places = [place for place, _ in axis.ticks()]
        assert len(places) >= 2
        assert places == sorted(places)
        assert all(10 <= place <= 300 for place in places)
    assert Axis.over([], 0, 1).ticks()


@pytest.mark.usefixtures("drawn")
def test_the_page_says_what_each_number_is(tmp_path: Path) -> None:
    page = written(measured(worst=4.0), tmp_path)
    shown = re.findall(r'class="value">([^<]*)<.*?class="badge (\w+)"', page)
    sigma = np.median([4.0 * 32**0.3, 4.0 * 32**0.3 + 0.1])
    assert shown[0] == (f"{sigma:.4g}", "probable")
    assert shown[1] == ("42", "proved")
    assert shown[2][1] == "estimate"
    assert float(shown[2][0]) == pytest.approx(0.3, abs=0.02)


@pytest.mark.usefixtures("drawn")
def test_without_brackets_nothing_is_called_probable(tmp_path: Path) -> None:
    table = measured()
    bare = [one._replace(upper=None) for one in table.rows]
    kinds = {"results": bare, "bounds": [], "directions": []}
    page = written(Table(table.study, table.config, kinds), tmp_path)
    assert set(re.findall(r'class="badge (\w+)"', page)) == {"estimate"}


@pytest.mark.usefixtures("drawn")
def test_a_page_as_large_as_the_demo_stays_small(tmp_path: Path) -> None:
    table = measured(6, tuple(range(8, 129, 24)), 4, 12, 128)
    assert len(written(table, tmp_path)) < LARGEST_DEMO


def test_every_study_has_a_view_and_plain_ones_a_plain_one() -> None:
    assert {name for name, study in studies().items() if type(find(study)) is not View} >= {
        *("measure", "certify", "attack", "flow", "invert", "line"),
    }
    assert type(find(Squares())) is View


@pytest.mark.parametrize(
    ("study", "config", "told"),
    [
        (Flow(), Flow.fast, "16 tokens"),
        (Flow(), FlowConfig(gaussian=True, time=0.5, frames=4), "a Gaussian of tokens"),
        (Invert(), Invert.fast, "found again"),
    ],
)
@pytest.mark.usefixtures("drawn")
def test_pages_of_computed_runs(study: Any, config: Any, told: str) -> None:
    table = run(study, config).table
    page = html_of(Run.of_table(table))
    assert told in page
    assert "cannot be shown" not in page
    assert told in table._repr_html_()


def test_views_of_other_studies_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view imports its study, and a figure of a paper scipy's statistics."""
    asked, read = list[str](), importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: asked.append(name) or read(name))
    find(Invert())
    assert asked == ["attnscope.report.views.invert"]


def test_a_study_without_a_view_has_a_page_with_its_figures() -> None:
    page = html_of(Run.of_table(run(Squares(), Config(cells=2)).table))
    assert "&lt;squares&gt;" in page
    assert '<svg xmlns="http://www.w3.org/2000/svg"' in page
    assert "costs $5 and [b]$6" in page
    assert "cannot be shown" not in page


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(SystemExit) as stop:
            main(["report", str(folder)])
        assert stop.value.code == 2
    told = capsys.readouterr().err
    assert "holds no run" in told
    assert "which is none" in told
    assert list(tmp_path.iterdir()) == []


def test_runs_side_by_side() -> None:
    table = measured()
    series = [
        Series("constant", "layer", {0: Value(1.0, 1.1), 1: Value(2.0, low), 2: Value(3.0)})
        for low in (2.1, 2.2)
    ]
    series[1].values[0] = Value(4.0, 4.1)  # type: ignore[index]
    found = Comparison([Loaded("<a>", table), Loaded("b", table)], [series])
    page = html_of_comparison(found, b"<svg")
    assert "1 of 2" in page
    assert "The figure is not shown" in page
    assert "&lt;a&gt;" in page
    assert "<a>" not in page


@pytest.mark.usefixtures("drawn")
def test_a_finished_run_lacks_nothing(flow: Path) -> None:
    page = of_folder(flow).read_text()
    assert "Mind this" not in page
    assert "In motion" in page
    before = {path.name for path in flow.iterdir()}
    run(Flow(), FlowConfig(particles=3, time=0.5, frames=2), folder=flow, overwrite=True)
    assert FILE in before
    assert not (flow / FILE).exists(), "a run that replaces another removes its page"


@pytest.mark.usefixtures("drawn")
def test_a_run_of_another_version(flow: Path) -> None:
    with sqlite3.connect(flow / "results.sqlite") as base:
        base.execute("UPDATE about SET value = '0.0.1' WHERE name = 'version'")
    page = of_folder(flow).read_text()
    assert "The run is of attnscope 0.0.1" in page
    assert "In motion" in page


@pytest.mark.usefixtures("drawn")
def test_a_run_whose_study_or_rows_are_not_known(flow: Path) -> None:
    with sqlite3.connect(flow / "results.sqlite") as base:
        base.execute("UPDATE about SET value = 'sorcery' WHERE name = 'study'")
    page = of_folder(flow).read_text()
    assert "knows no study &#x27;sorcery&#x27;" in page
    assert "stop_time" in page
    assert "In motion" not in page


@pytest.mark.usefixtures("drawn")
def test_a_run_cut_short_or_killed(flow: Path) -> None:
    record = json.loads((flow / "run.json").read_text())
    (flow / "run.json").write_text(json.dumps(record | {"finished": False}))
    assert "cut short: 1 of 1 cells done" in of_folder(flow).read_text()
    (flow / "run.json").write_text("{")
    assert "run.json cannot be read" in of_folder(flow).read_text()
    (flow / "run.json").unlink()
    page = of_folder(flow).read_text()
    assert "the run has not ended, or was killed" in page
    assert "In motion" in page


def test_a_damaged_store_leaves_what_lies_beside_it(flow: Path) -> None:
    (flow / "results.sqlite").write_bytes(b"no store at all" * 100)
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"/>'
    (flow / "flow.svg").write_text(svg)
    page = of_folder(flow).read_text()
    assert "The store of rows cannot be read" in page
    assert "stop_time" in page
    assert 'class="drawn"' in page


@pytest.mark.usefixtures("drawn")
def test_rows_that_hold_no_number(tmp_path: Path) -> None:
    table = measured()
    spoilt = [*table.rows, row(0, None, 16, 9, float("nan"))]
    kinds = {"results": spoilt, "bounds": table["bounds"], "directions": []}
    page = written(Table(table.study, table.config, kinds), tmp_path)
    assert "Not a number: a value in 1 of 31 rows of results." in page
    assert "Layers by lengths" in page
    nothing = [one._replace(lower=float("nan"), upper=None) for one in table.rows]
    page = written(Table(table.study, table.config, {"results": nothing}), tmp_path)
    assert "cannot be shown" in page
    assert "All rows" in page


def test_many_runs_share_a_page(flow: Path) -> None:
    folder = flow.parent / "many"
    folder.mkdir()
    shutil.copytree(flow, folder / "one")
    shutil.copytree(flow, folder / "<two>")
    page = of_folder(folder).read_text()
    assert page.count("How do 16 tokens") == 2
    assert "There is no verdicts.json" in page
    assert "<two>" not in page


@pytest.mark.usefixtures("drawn")
def test_the_command_writes_the_page_and_opens_it_where_there_is_a_screen(
    flow: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for screen in ("", ":0"):
        monkeypatch.setenv("DISPLAY", screen)
        monkeypatch.setenv("WAYLAND_DISPLAY", "")
        with pytest.raises(SystemExit) as stop:
            main(["report", str(flow), "--open"])
        assert stop.value.code in (0, None)
    assert opened == [(flow / FILE).resolve().as_uri()]
    assert f"To look at: {flow / FILE}" in capsys.readouterr().out.replace("\n", "")
