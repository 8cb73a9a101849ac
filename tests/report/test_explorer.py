"""The explorer's page: what a reader can do on it, with a pointer, with keys alone, on a phone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attnscope.cli import app
from attnscope.report import explorer
from attnscope.report.explorer.bundle import bundled
from browser_pages import PHONE, sticking_out, violations

APP = "explorer['main.js'].app"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("explorer") / "explorer.html"
    made.write_text(explorer.page())
    return made


def tokens(page: Any) -> list[float]:
    return page.evaluate(f"() => Array.from({APP}.session.now)")


def on_screen(page: Any, number: int) -> tuple[float, float]:
    """Where a point of the picture is in the window."""
    page.locator("#stage").scroll_into_view_if_needed()
    return tuple(
        page.evaluate(
            f"""(number) => {{
              const {{ session, stage: {{ view, canvas }} }} = {APP};
              view.see(session.points(), number * session.dim, session.dim);
              const box = canvas.getBoundingClientRect();
              return [box.left + view.x, box.top + view.y];
            }}""",
            number,
        )
    )


def test_dragging_moves_a_token_and_nothing_else(path: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(path, anchor="#preset=runaway")
    before = tokens(page)
    x, y = on_screen(page, 3)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y - 40, steps=4)
    page.mouse.up()
    after = tokens(page)
    moved = page.evaluate(f"() => {APP}.stage.selected")
    changed = {k // 2 for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert changed == {moved}
    scale = page.evaluate(f"() => {APP}.stage.view.scale")
    assert after[2 * moved] - before[2 * moved] == pytest.approx(60 / scale, abs=12 / scale)
    assert after[2 * moved + 1] - before[2 * moved + 1] == pytest.approx(40 / scale, abs=12 / scale)


def test_sliders_change_where_tokens_go_and_rewinding_brings_them_back(
    path: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(path, anchor="#preset=runaway")
    start = tokens(page)
    page.get_by_role("button", name="Step", exact=True).click()
    outwards = tokens(page)
    page.get_by_role("button", name="Rewind").click()
    assert tokens(page) == start
    # V: the first entry to its least
    slider = page.get_by_role("slider", name="V, row 1 column 1")
    slider.fill("-3")
    page.get_by_role("button", name="Step", exact=True).click()
    inwards = tokens(page)
    assert max(outwards[::2]) > max(start[::2]) > max(inwards[::2])
    page.get_by_role("button", name="Rewind").click()
    assert tokens(page) == start


def test_running_advances_time_and_pausing_measures(
    path: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(path)
    page.get_by_role("button", name="Run").click()
    page.wait_for_function(f"() => {APP}.session.state.time > 0.3")
    page.get_by_role("button", name="Pause").click()
    page.wait_for_function(f"() => {APP}.session.measured?.time === {APP}.session.state.time")
    assert page.locator("#bounds tbody tr").count() >= 5
    assert "≈" in page.locator("#sigma").inner_text()
    page.get_by_role("slider", name="Time shown").fill("0")
    clock = "document.getElementById('clock').innerText"
    page.wait_for_function(f"() => {clock} === 't = 0'")  # drawn with the next frame


def test_the_keyboard_alone_suffices(path: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(path, anchor="#preset=causal")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.id") == "stage":
            break
    else:
        pytest.fail("the picture cannot be reached by tab")
    page.keyboard.press("]")
    before = tokens(page)
    page.keyboard.press("ArrowLeft")
    after = tokens(page)
    changed = {k // 2 for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert changed == {1}
    assert after[2] ** 2 + after[3] ** 2 == pytest.approx(1)  # it stays on the circle
    page.keyboard.press("n")
    assert len(tokens(page)) == len(after) + 2
    page.keyboard.press("Delete")
    assert len(tokens(page)) == len(after)
    page.keyboard.press(" ")
    page.wait_for_function(f"() => {APP}.session.state.time > 0")
    page.keyboard.press(" ")
    assert not page.evaluate(f"() => {APP}.session.running")


@pytest.mark.parametrize(("width", "dark"), [(PHONE, True), (1280, False)])
def test_everything_fits_and_can_be_read(
    width: int,
    dark: bool,
    path: Path,
    open_page: Callable[..., Any],
) -> None:
    page = open_page(path, width=width, dark=dark)
    page.wait_for_function(f"() => {APP}.session.measured?.bounds")
    assert sticking_out(page) == []
    assert violations(page) == []
    assert page.get_by_role("radio", name="a Gaussian").is_disabled()  # none on a sphere
    page.select_option("#preset", "line")
    assert sticking_out(page) == []
    assert violations(page) == []


def test_every_choice_can_be_made_from_every_preset(
    path: Path, open_page: Callable[..., Any]
) -> None:
    """Presets, variants, spaces, heads: a step is taken in each, and stays finite."""
    page = open_page(path)
    bad = page.evaluate(
        f"""() => {{
          const app = {APP};
          const bad = [];
          const tried = (what) => {{
            app.step();
            if (!app.session.now.every(Number.isFinite)) bad.push(what);
          }};
          for (const preset of app.presets) {{
            app.begin(preset.name);
            tried(preset.name);
            for (const name of ["l2", "sinkhorn", "sigmoid", "softmax"]) {{
              app.attention.choose(name);
              tried(`${{preset.name}} ${{name}}`);
            }}
          }}
          for (const space of ["circle", "sphere", "plane"]) {{
            app.tokens.travel(space);
            for (const heads of [2, 3, 1]) {{
              app.attention.setHeads(heads);
              tried(`${{space}} ${{heads}}`);
            }}
          }}
          app.tokens.become("gaussian");
          tried("gaussian");
          app.tokens.become("tokens");
          tried("tokens");
          return bad;
        }}"""
    )
    assert bad == []


def test_a_link_restores_the_state(path: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(path, anchor="#preset=causal")
    page.evaluate(
        f"""() => {{
          const app = {APP};
          app.attention.choose("sigmoid");
          app.attention.setHeads(2);
          app.tokens.weigh(2.5);
          app.step();
          app.step();
        }}"""
    )
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("() => location.hash.length > 100")
    told = f"() => {{ const s = {APP}.session; s.store(); return s.state; }}"
    state, link = page.evaluate(told), page.evaluate("() => location.hash")
    assert state["time"] > 0
    other = open_page(path, anchor=link)
    assert other.evaluate(told) == state
    assert other.locator("#notice").is_hidden()


@pytest.mark.parametrize(
    "link",
    ["#nonsense", "#preset=no-such", "#variant=softmax&space=plane", "#variant=%E0%A4%A"],
)
def test_a_broken_link_is_told_and_the_default_shown(
    link: str,
    path: Path,
    open_page: Callable[..., Any],
) -> None:
    page = open_page(path, anchor=link)
    assert "could not be read" in page.locator("#notice").inner_text()
    assert page.evaluate(f"() => {APP}.session.state.preset") == explorer.all_presets()[0].name


def test_damaged_parts_of_a_link_are_told(path: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(path)
    problems = page.evaluate(
        f"""() => {{
          const {{ decode, encode }} = explorer["state.js"];
          const {{ presets, first, session }} = {APP};
          const broken = (name, value) => {{
            const parts = new URLSearchParams(encode(session.state));
            parts.set(name, value);
            return decode("#" + parts, presets, first).problem;
          }};
          const whole = decode("#" + encode(session.state), presets, first).problem;
          return [whole, ...Object.entries({{
            x: "AAAA", masses: "!", eps: "-1", A1: "1,2", V1: "1e99,0,0,0,0,0,0,0,0", time: "NaN",
            space: "constructor", mean: "", measure: "gaussian", speed: "0",
          }}).map(([name, value]) => broken(name, value))];
        }}"""
    )
    assert problems[0] == ""
    assert all("could not be read" in problem for problem in problems[1:])
    assert len(set(problems)) > 8


def test_the_gaussian_presets_do_what_they_say(path: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(path)
    ends = page.evaluate(
        f"""() => {{
          const {{ Session }} = explorer["session.js"];
          const {{ stateOf }} = explorer["state.js"];
          const {{ gaussianOf }} = explorer["motion.js"];
          const flown = (name, until, edit = () => {{}}) => {{
            const state = stateOf({APP}.presets.find((one) => one.name === name));
            edit(state);
            const session = new Session(state);
            const began = session.radius();
            while (session.state.time < until && session.ended === "") session.tick(0.1, Infinity);
            const {{ cov }} = gaussianOf(session.now);
            return {{
              ended: session.ended, time: session.state.time, predicted: session.predicted,
              rank: session.present.rank, radius: session.radius() / began,
              along: [cov[0], cov[1], cov[3]], A: Array.from(state.heads[0].A),
            }};
          }};
          return {{
            zero: flown("to-zero", 1e4), line: flown("line", 1e4), plane: flown("plane", 1e4),
            two: flown("two-lines", 1e3), explosion: flown("explosion", 50),
            l2: flown("explosion", 3, (state) => {{ state.variant = "l2"; }}),
            sinkhorn: flown("explosion", 3, (state) => {{ state.variant = "sinkhorn"; }}),
            mixed: flown("mixed", 100),
            turned: flown("mixed", 100, (state) => {{ state.factor.set([0.32, 0, 0, 0.95]); }}),
          }};
        }}"""
    )
    assert ends["zero"]["radius"] < 0.2
    assert ends["zero"]["ended"] == ""
    assert ends["line"]["rank"] == 1
    assert 0.5 < ends["line"]["radius"] <= 1
    assert ends["plane"]["rank"] == 2
    assert ends["two"]["rank"] == 1
    for name in ("line", "two"):  # flat along <Ax, x> = 0
        s11, s12, s22 = ends[name]["along"]
        a = ends[name]["A"]
        assert abs(a[0] * s11 + (a[1] + a[2]) * s12 + a[3] * s22) < 0.02 * (s11 + s22)
    assert ends["explosion"]["ended"] == "blew up"
    assert ends["explosion"]["time"] == pytest.approx(ends["explosion"]["predicted"], rel=1e-6)
    for name in ("l2", "sinkhorn"):
        assert ends[name]["ended"] == ""
        assert ends[name]["radius"] > 2
    assert {ends["mixed"]["ended"], ends["turned"]["ended"]} == {"", "blew up"}


def test_the_command_writes_the_page_and_lists_presets(tmp_path: Path) -> None:
    out = tmp_path / "new" / "play.html"
    result = CliRunner().invoke(app, ["explore", "--out", str(out), "--preset", "line"])
    assert result.exit_code == 0
    text = out.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert json.loads(text.split('id="presets">')[1].split("</script>")[0])["first"] == "line"
    with pytest.raises(ValueError, match=r"one of sphere, .*line.*got 'no'"):
        explorer.page("no")


def test_modules_are_bundled_in_order_and_other_forms_refused() -> None:
    modules = {
        "a.js": 'import { b } from "./under/b.js";\nexport const a = b + 1;\n',
        "under/b.js": 'import { c } from "../c.js";\nexport function b() { return c; }\n',
        "c.js": "export const c = 1;\n",
        "unused.js": "export default 1;\n",
    }
    made = bundled(modules, "a.js")
    assert made.index('["c.js"] =') < made.index('["under/b.js"] =') < made.index('["a.js"] =')
    assert "import" not in made
    assert "unused" not in made
    with pytest.raises(ValueError, match="not understood: export default"):
        bundled(modules, "unused.js")
    with pytest.raises(ValueError, match="not understood: import x"):
        bundled({"a.js": 'import x from "./b.js";\n'}, "a.js")
    with pytest.raises(ValueError, match=r"imports gone\.js"):
        bundled({"a.js": 'import { x } from "./gone.js";\n'}, "a.js")
    with pytest.raises(ValueError, match="import each other"):
        bundled({"a.js": 'import { a } from "./a.js";\n'}, "a.js")
