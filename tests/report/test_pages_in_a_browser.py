"""Pages as readers meet them: on a phone or a desk, light or dark, with a mouse or keys alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import HOSTILE, measured

from attnscope.report import figures
from attnscope.studies import drawing, run
from attnscope.studies.flow import Flow, FlowConfig
from browser_pages import DESKTOP, PHONE, sticking_out, violations

SVG = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200">
    <text x="9" y="99" style="fill: #000000">figure</text></svg>"""


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of `measure` with everything on it, and a hostile model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_drawn", lambda table, without: {"figure.svg": SVG})
        return measured(layers=4).report(tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize(("width", "dark"), [(PHONE, False), (PHONE, True), (DESKTOP, True)])
def test_everything_fits_and_can_be_read(
    width: int, dark: bool, page: Path, open_page: Callable[..., Any]
) -> None:
    shown = open_page(page, width=width, dark=dark)
    assert HOSTILE in shown.title()
    assert sticking_out(shown) == []
    assert violations(shown) == []
    drawn = shown.locator("svg.chart, svg.map, svg.drawn")
    assert drawn.count() == 4 + 2 + 1
    assert all(box["height"] > 50 for box in (one.bounding_box() for one in drawn.all()))
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark


def unfolded(shown: Any, table: str) -> int:
    """The rows that are drawn of a table, once its fold has told, in its own time, that it is open:
    before that nothing in it listens.
    """
    lines = f"document.querySelectorAll('#rows-{table} tbody tr').length"
    shown.wait_for_function(f"() => {lines} > 0")
    return int(shown.evaluate(lines))


def test_tables_sort_and_filter(page: Path, open_page: Callable[..., Any]) -> None:
    shown = open_page(page)
    shown.get_by_text("directions: 96 rows").click()
    assert unfolded(shown, "directions") == 96
    table = shown.locator("#rows-directions")

    def column(number: int) -> list[str]:
        return table.locator(f"tbody td:nth-child({number})").all_inner_texts()

    carried = 6
    button = table.get_by_role("button", name="carried")
    button.click()
    values = [float(value) for value in column(carried)]
    assert len(values) == 96
    assert values == sorted(values)
    button.click()
    assert [float(value) for value in column(carried)] == sorted(values, reverse=True)
    search = shown.locator("input[aria-controls=rows-directions]")
    search.fill("layer=2 token>=20 tired")
    assert set(column(1)) == {"2"}
    assert {int(value) for value in column(3)} == {23}
    search.fill("no such word")
    assert column(1) == []


def test_long_tables_come_a_hundred_rows_at_a_time(
    tmp_path: Path, open_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_drawn", lambda table, without: {})
    path = measured(layers=3, samples=20, heads=3).report(tmp_path / "long.html")
    shown = open_page(path)
    shown.get_by_text("results: 360 rows").click()
    assert unfolded(shown, "results") == 100
    shown.get_by_role("button", name="Show 100 more of 360").click()
    assert unfolded(shown, "results") == 200


def test_keys_alone_suffice(page: Path, open_page: Callable[..., Any]) -> None:
    shown = open_page(page)
    tip = shown.locator("#tip")
    shown.keyboard.press("Tab")  # the theme is the first stop
    assert shown.evaluate("document.activeElement.id") == "theme"
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.body.dataset.theme") == "dark"
    shown.keyboard.press("Tab")  # the first figure
    told = tip.inner_text()
    assert told.startswith("layer 0, 8 tokens: σ = ")
    assert "bracket of sequence" in told
    shown.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("layer 0, 16 tokens")
    shown.locator("svg.map").first.locator(".mark").first.focus()
    shown.keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("layer 1, 8 tokens")
    shown.keyboard.press("End")
    assert tip.inner_text().startswith("layer 3, 32 tokens")
    shown.keyboard.press("Escape")
    assert not tip.is_visible()
    shown.locator("summary").first.focus()
    shown.keyboard.press("Enter")
    unfolded(shown, "results")
    shown.locator("#rows-results th button").first.focus()
    shown.keyboard.press("Enter")
    assert shown.locator("#rows-results th").first.get_attribute("aria-sort") == "ascending"


def test_hovering_tells_the_value_and_its_bracket(
    page: Path, open_page: Callable[..., Any]
) -> None:
    shown = open_page(page)
    cell = shown.locator("svg.map").nth(1).locator(".mark").last
    cell.hover()
    told = shown.locator("#tip").inner_text()
    assert told.startswith("head 1 of layer 3, 32 tokens: σ = 4.5")
    assert "4.5 to 4.5045" in told


def test_another_layer_tints_the_text_anew(page: Path, open_page: Callable[..., Any]) -> None:
    shown = open_page(page)
    text = shown.locator("#directions-0")
    assert "</script><img src=x onerror=alert(2)>" in text.inner_text()
    assert text.locator("img").count() == 0
    token = text.locator(".mark").nth(5)
    strongest = text.locator(".mark").last.evaluate("one => one.style.background")
    assert "50%" in strongest
    shown.locator("select[data-tokens]").select_option("0")
    token.hover()
    assert shown.locator("#tip").inner_text() == "token 5 “tired” carries 2.0 %"


def test_a_flow_moves(
    tmp_path: Path, open_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "available", lambda: False)
    config = FlowConfig(particles=5, time=1.0, frames=6)
    shown = open_page(run(Flow(), config).table.report(tmp_path / "flow.html"), width=PHONE)
    assert violations(shown) == []
    assert sticking_out(shown) == []
    slider, dot = shown.get_by_role("slider"), shown.locator("svg.player circle").first
    end = dot.get_attribute("cx")
    slider.focus()
    shown.keyboard.press("Home")
    assert dot.get_attribute("cx") != end
    assert shown.locator("output").inner_text() == "t = 0"
    from playwright.sync_api import expect  # the extra is there where a browser is

    shown.get_by_role("button", name="Play").click()
    expect(slider).not_to_have_value("0")
    shown.get_by_role("button", name="Pause").click()
    assert shown.get_by_role("button", name="Play").is_visible()
