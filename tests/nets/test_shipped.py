"""The digits network that ships with the package is what it is said to be."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from attnscope import nets
from attnscope.certification import certify
from attnscope.data.pictures import images

FOLDER = Path(str(resources.files("attnscope.nets") / "digits"))


def test_the_shipped_network_reads_digits_with_live_attention() -> None:
    network = nets.load(FOLDER).double().eval().requires_grad_(False)
    test = images("digits", "test")
    pixels = test.pixels.double()
    right = network(pixels).argmax(-1) == test.labels
    moved = network(pixels) - network.with_content_off()(pixels)
    assert right.double().mean() >= 0.95
    assert min(float(norms.min()) for norms in network.attention_norms()) >= 0.2
    assert moved.abs().amax(1).median() > 0.1, "content attention does nothing"


def test_most_digits_are_certified_at_a_quarter() -> None:
    network = nets.load(FOLDER).double().eval()
    test = images("digits", "test").first(40)
    proved = certify(network, test.pixels.double(), 0.25, test.labels)
    assert sum(one.verdict for one in proved) >= 0.8 * len(test)


def test_it_is_small_and_says_how_it_was_made() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 1e6
    notes = nets.describe(FOLDER)["notes"]
    assert notes["data"] == "digits"
    assert notes["finished"] is True
    control = nets.load(FOLDER / "control")
    assert all(float(norms.max()) == 0 for norms in control.attention_norms())
    assert len(control.attentions) == 1
    assert nets.describe(FOLDER / "control")["notes"]["steps"] == notes["steps"]
