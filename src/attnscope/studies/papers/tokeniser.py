r"""From a text and from an image to vectors: words become pieces, pieces become numbers, numbers
become vectors; patches of an image become vectors by one linear map.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from attnscope.data import images
from attnscope.layers import PatchEmbedding
from attnscope.studies.cell import Cell
from attnscope.studies.drawing import BLUE, new_figure
from attnscope.studies.papers._figure import PaperFigure
from attnscope.studies.papers._texts import ids_of, present
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table
from attnscope.studies.workbench import Workbench, hash_ids

EXACT = 1e-6
TEXT, IMAGE = "text", "image"


class Vector(NamedTuple):
    """One token: its place, its number (of the patch for an image), what it stands for, the norm of
    its vector, and how far it is from the vector of the same token elsewhere, or, for a patch, from
    the patch that its vector gives back.
    """

    source: str
    place: int
    number: int
    piece: str
    norm: float
    apart: float
    vector: np.ndarray


@dataclass(frozen=True)
class TokeniserConfig:
    models: tuple[str, ...] = ("bert-base-uncased", "minilm")
    decoder: str | None = None
    text: str = "alice"
    n: int = 40
    image: int = 0


@dataclass(frozen=True, kw_only=True)
class TokeniserCell(Cell):
    source: str
    model: str
    text: str
    tokens: str
    n: int
    image: int


class Tokeniser(PaperFigure):
    """From a text and from an image to vectors."""

    name = "tokeniser"
    paper = "ablin24"
    figure = "tokens of a text and of an image"
    topic = "talk"
    seconds = (5, 8)
    Config = TokeniserConfig
    fast = TokeniserConfig(models=("minilm",))
    tables: ClassVar[dict[str, type]] = {"results": Vector}

    def cells(self, config: TokeniserConfig, workbench: Workbench) -> Iterable[TokeniserCell]:
        model = next(iter(present(config.models, None, workbench)))
        ids = ids_of(model, config.text, workbench)
        for source in (TEXT, IMAGE):
            yield TokeniserCell(
                source=source,
                model=model.name,
                text=config.text,
                tokens=hash_ids(ids),
                n=config.n,
                image=config.image,
            )

    @torch.no_grad()
    def run(self, cell: TokeniserCell, workbench: Workbench) -> list[Vector]:
        if cell.source == IMAGE:
            return _patches(cell.image)
        model = workbench.model(cell.model)
        ids = ids_of(model, cell.text, workbench)[: cell.n]
        vectors = model.module.get_input_embeddings()(ids).double()
        first = {int(number): place for place, number in reversed(list(enumerate(ids.tolist())))}
        return [
            Vector(
                TEXT,
                place,
                number,
                piece,
                float(vectors[place].norm()),
                float((vectors[place] - vectors[first[number]]).norm()),
                vectors[place].numpy(),
            )
            for place, (number, piece) in enumerate(
                zip(ids.tolist(), model.pieces(ids), strict=True)
            )
        ]

    def figures(self, table: Table) -> dict[str, Any]:
        words, patches = ([row for row in table if row.source == name] for name in (TEXT, IMAGE))
        figure = new_figure(10, 4)
        grid_of = figure.add_gridspec(1, 2, width_ratios=(2, 1))
        if words:
            left = figure.add_subplot(grid_of[0])
            left.bar([row.place for row in words], [row.norm for row in words], color=BLUE)
            pieces = [row.piece.replace("$", r"\$") for row in words]
            left.set_xticks([row.place for row in words], pieces, rotation=90, fontsize=6)
            left.set(ylabel="norm of the vector", title="pieces of a text", xlabel="piece")
        if patches:
            right = figure.add_subplot(grid_of[1])
            grid = np.stack([row.vector for row in patches])
            image = right.imshow(grid.T, aspect="auto")
            figure.colorbar(image, ax=right, label="entry")
            right.set(title="patches of an image", xlabel="patch", ylabel="coordinate")
            right.grid(False)
        return {self.name: figure}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        for source, statement in (
            (TEXT, "equal pieces of a text have equal vectors"),
            (IMAGE, "the vectors of an image give its patches back"),
        ):
            rows = [row for row in table if row.source == source]
            if not rows:
                continue
            again = len(rows) - len({row.number for row in rows})
            worst = max(row.apart for row in rows)
            repeated = f", {again} of them repeated" if source == TEXT else ""
            made.append(
                Verdict(
                    statement,
                    "before positions are added",
                    f"distances up to {worst:.1e}, {len(rows)} tokens{repeated}",
                    worst <= EXACT if again or source == IMAGE else None,
                    f"below {EXACT:g} counts as none",
                )
            )
        return made


def _patches(number: int) -> list[Vector]:
    """The patches of one digit through an isometry, and back by its adjoint."""
    pixels = images("digits", "test").pixels[number].double()
    shape = (int(pixels.shape[0]), int(pixels.shape[1]), int(pixels.shape[2]))
    embed = PatchEmbedding(shape, 2, 16, torch.Generator().manual_seed(0)).double()
    tokens = embed(pixels) - embed.position
    patches = embed.patches(pixels)
    back = tokens @ embed.weight + 0.5
    return [
        Vector(
            IMAGE,
            place,
            place,
            f"patch {place}",
            float(token.norm()),
            float((back[place] - patches[place]).norm()),
            token.numpy(),
        )
        for place, token in enumerate(tokens)
    ]
