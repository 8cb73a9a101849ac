"""What the documents say is true: examples run, tables agree, folders and references exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from benchmarks.table import as_markdown as as_table
from benchmarks.table import those_that_matter

from attnscope.cli import app
from attnscope.cli.reproduce import as_markdown as list_of_figures
from attnscope.cli.variants import as_markdown
from attnscope.studies.papers import find

ROOT = Path(__file__).parents[1]


def blocks(document: str, heading: str, language: str = "python") -> list[str]:
    """The code blocks of one section."""
    section = (ROOT / document).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def between(document: str, marker: str) -> str:
    found = re.search(
        rf"<!-- {marker}[^>]*-->\n(.*?)\n<!-- /{marker} -->",
        (ROOT / document).read_text(),
        re.DOTALL,
    )
    assert found, f"{document} has no part marked {marker}"
    return found[1]


def test_the_docs_show_the_table_of_variants() -> None:
    assert between("docs/variants.md", "variants") == as_markdown(), (
        "regenerate it: attnscope variants --markdown"
    )


def test_the_docs_quote_the_benchmarks_as_they_ran() -> None:
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    assert between("docs/benchmarks.md", "bench") == as_table(results), (
        "regenerate it: python -m benchmarks --markdown"
    )
    assert between("README.md", "bench") == those_that_matter(results), (
        "regenerate it: python -m benchmarks --readme"
    )


def test_the_docs_list_every_figure_of_the_papers() -> None:
    assert between("docs/reproduce.md", "figures") == list_of_figures(find()), (
        "regenerate it: attnscope reproduce list --markdown"
    )


PAGES = {
    page.name: found
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if (found := re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
}
ELSEWHERE = {"extend.md", "jvp.md"}
"""Pages whose blocks are whole files, or run in a test of their own."""


@pytest.mark.parametrize("page", sorted(set(PAGES) - ELSEWHERE))
def test_the_code_on_every_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(PAGES[page]):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "docs/index.md").read_text()
    listed = {
        line
        for part in re.findall(r"```\{toctree\}(.*?)```", menu, re.DOTALL)
        for line in part.split()
    }
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= listed


def test_every_command_in_the_documents_exists_with_its_options() -> None:
    commands = typer.main.get_command(app).commands
    shown = [
        line
        for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for line in re.findall(r"attnscope [a-z].*", page.read_text())
    ]
    used = [
        (line.split()[1], re.findall(r"--[a-z][a-z-]*", line.split("#")[0].split("`")[0]))
        for line in shown
        if line.split()[1] in commands
    ]
    assert {name for name, _ in used} == set(commands)
    known = {
        name: {
            "--help",
            *(option for part in command.params for option in (*part.opts, *part.secondary_opts)),
        }
        for name, command in commands.items()
    }
    assert [
        (name, option) for name, options in used for option in options if option not in known[name]
    ] == []


def test_an_executor_runs_a_sweep_as_the_page_says() -> None:
    (example,) = blocks("docs/sweeps.md", "Engines")[:1]
    exec(compile(example, "docs/sweeps.md", "exec"), {})


def test_everything_on_the_map_exists() -> None:
    places = re.findall(r"^\| `([^`]+)` \|", between("docs/map.md", "map"), re.MULTILINE)
    assert len(places) > 5
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_every_folder_of_the_package_is_on_the_map() -> None:
    folders = {path.parent.name for path in (ROOT / "src/attnscope").glob("*/__init__.py")}
    written = set(re.findall(r"`src/attnscope/(\w+)/`", between("docs/map.md", "map")))
    assert folders - written == set()


def test_the_makefile_has_the_targets_that_the_readme_names() -> None:
    named = set(
        re.findall(
            r"^make (\w+)",
            (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text(),
            re.MULTILINE,
        )
    )
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "demo", "lint", "bench"} <= named <= targets


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text()):
            assert target.startswith("http") or (document.parent / target).exists(), (
                f"{document.name} links to {target}"
            )


def test_every_reference_is_in_the_bibliography() -> None:
    keys = set(
        re.findall(r"^@\w+\{(\w+),", (ROOT / "docs/references.bib").read_text(), re.MULTILINE)
    )
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    cited = {
        key
        for path in sources
        for key in re.findall(r"\[([a-z]+\d\d[a-z]?)(?:, [^\]]*)?\]", path.read_text())
    }
    assert len(cited) > 5
    assert cited - keys == set()
    assert set(re.findall(r"\| (\w+) \|$", as_markdown(), re.MULTILINE)) - {"reference"} <= keys


@pytest.fixture(scope="module")
def extended_package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose attnscope is a copy of this one with the files of docs/extend.md added,
    and nothing else.
    """
    place = tmp_path_factory.mktemp("extended")
    shutil.copytree(
        ROOT / "src/attnscope", place / "attnscope", ignore=shutil.ignore_patterns("__pycache__")
    )
    shown = re.findall(
        r"`src/attnscope/(\S+\.py)`:\n\n^```python\n(.*?)^```$",
        (ROOT / "docs/extend.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert {path for path, _ in shown} >= {
        "attention/cauchy.py",
        "attention/penalised.py",
        "bounds/smooth/cauchy.py",
        "cli/radii.py",
        "models/opt.py",
        "studies/papers/cesaro.py",
    }
    for path, source in shown:
        assert not (place / "attnscope" / path).exists()
        (place / "attnscope" / path).write_text(source)
    return {**os.environ, "PYTHONPATH": str(place)}


def test_a_seventh_variant_is_one_file(extended_package: dict[str, str]) -> None:
    contract = [
        "-m",
        "pytest",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/attention",
        "tests/operators",
        "-k",
        "cauchy or penalised",
    ]
    run = subprocess.run(
        [sys.executable, *contract], cwd=ROOT, env=extended_package, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


BOUNDED = """
import torch
import attnscope as asc
from attnscope.attention.cauchy import Cauchy

torch.manual_seed(0)
for trial in range(20):
    query, key, value = torch.randn(3, 2, 2, 3, dtype=torch.float64)
    heads = asc.Heads(query, key, value, torch.randn(2, 3, 2, dtype=torch.float64))
    x = torch.randn(7, 3, dtype=torch.float64)
    radius = float(x.norm(dim=-1).max())
    bound = asc.bounds.on_ball(Cauchy(heads), 7, radius).named("Cauchy-M1").value
    sigma = asc.jacobian(Cauchy(heads), asc.Particles(x)).to_dense()
    sigma = torch.linalg.svdvals(sigma.reshape(21, 21)).max()
    assert sigma <= bound < float("inf"), (sigma, bound)
print("held")
"""


KNOWN = """
import torch, transformers
import attnscope as asc

torch.manual_seed(0)
sizes = dict(hidden_size=12, ffn_dim=16, num_hidden_layers=2, num_attention_heads=3, vocab_size=20)
module = transformers.OPTModel(transformers.OPTConfig(**sizes, max_position_embeddings=16)).eval()
model = asc.load(module, dtype=torch.float64)
x = model.tokens(torch.arange(2, 9), 1)
same = torch.allclose(model.attention(1)(x, asc.Particles(x)), model.function(1, "attention")(x))
print(type(model).__name__, model.rebuilt(1), same)
"""

DRAWN = """
from attnscope.studies import run
from attnscope.studies.papers import find

figure = find()["cesaro"]
table = run(figure, figure.fast).table
(verdict,) = table.verdicts()
print(verdict.outcome, len(table), list(table.figures()))
"""


ONE_BY_ONE = """
import sys
for script in sys.argv[1:]:
    try:
        exec(script, {})
    except SystemExit as end:
        assert not end.code, script
    print(end="\\f")
"""


def test_what_is_one_file_each_is_found(extended_package: dict[str, str]) -> None:
    command = "from attnscope.cli import main; main({})"
    commands = (["theorems", "--markdown"], ["variants", "--markdown"], ["radii", "minilm"])
    scripts = (BOUNDED, KNOWN, DRAWN, *(command.format(words) for words in commands))
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *scripts],
        env=extended_package,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    bounded, known, drawn, theorems, variants, radii = done.stdout.split("\f")[:-1]
    assert bounded.strip() == "held"
    assert known.split() == ["OPT", "True", "True"]
    assert drawn.strip() == "holds 3 ['cesaro']"
    assert "| Cauchy-M1 |" in theorems
    assert "| cauchy | no | yes | not known | vandermaaten08 |" in variants.splitlines()
    assert "| penalised | yes | yes | not known | kim21 |" in variants.splitlines()
    assert "layer 5: " in radii


def test_a_layer_of_ones_own_is_certified() -> None:
    (example,) = blocks("docs/extend.md", "A new layer")
    names: dict[str, object] = {}
    exec(compile(example, "docs/extend.md", "exec"), names)
    certificates = names["certificates"]
    assert len(certificates) == 2  # type: ignore[arg-type]
