"""Every figure of the papers at a size for tests: its settings, its rows, computed once, and a
workbench with a tiny network for those that read text.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnscope.models import load
from attnscope.studies import Study, Table, Workbench
from attnscope.studies.papers import find
from attnscope.studies.papers._defects import DefectConfig
from attnscope.studies.papers._draws import DrawsConfig
from attnscope.studies.papers._texts import TextConfig
from attnscope.studies.papers._trained import TrainedConfig
from attnscope.studies.papers.adversarial import AdversarialConfig
from attnscope.studies.papers.backward_memory import MemoryConfig
from attnscope.studies.papers.bound_against_attack import BoundConfig
from attnscope.studies.papers.certified_digits import DigitsConfig
from attnscope.studies.papers.certified_strips import StripsConfig
from attnscope.studies.papers.duplicated_text import DuplicatedConfig
from attnscope.studies.papers.ellipses import EllipsesConfig
from attnscope.studies.papers.equal_cost_attacks import CostConfig
from attnscope.studies.papers.euler_order import EulerConfig
from attnscope.studies.papers.explosion import ExplosionConfig
from attnscope.studies.papers.few_diracs import DiracsConfig
from attnscope.studies.papers.gaussian_against_particles import AgreementConfig
from attnscope.studies.papers.heads_by_layers import HeadsConfig
from attnscope.studies.papers.invertible_layers import BackConfig
from attnscope.studies.papers.large_radius import LargeConfig
from attnscope.studies.papers.layer_norm import NormConfig
from attnscope.studies.papers.line import LineConfig
from attnscope.studies.papers.lipschitz_against_length import LengthConfig
from attnscope.studies.papers.lipschitz_against_radius import RadiusConfig
from attnscope.studies.papers.masked_against_unmasked import MaskConfig
from attnscope.studies.papers.mean_field import MeanFieldConfig
from attnscope.studies.papers.plane import PlaneConfig
from attnscope.studies.papers.point_cloud_flow import CloudConfig
from attnscope.studies.papers.rank_histogram import RankConfig
from attnscope.studies.papers.sphere_clustering import SphereConfig
from attnscope.studies.papers.splitting_gain import GainConfig
from attnscope.studies.papers.to_zero import ToZeroConfig
from attnscope.studies.papers.tokeniser import TokeniserConfig
from attnscope.studies.papers.tokens_through_depth import DepthConfig
from attnscope.studies.papers.two_regimes import RegimesConfig
from attnscope.studies.study import check_row

FIGURES = find()
NETWORK = "GPT2Model"
TEXT = TextConfig(models=(NETWORK,), decoder=None, lengths=(2, 4, 8), samples=3)
PICTURES = Path(tempfile.mkdtemp(prefix="pictures-"))
"""A folder with images of two classes under both names, removed at the end."""
atexit.register(shutil.rmtree, PICTURES, True)
for _name in ("cifar10", "svhn"):
    _labels = np.arange(20) % 2
    np.savez(
        PICTURES / f"{_name}.npz",
        images=(40 + 120 * _labels[:, None, None, None]).repeat(8, 1).repeat(8, 2).astype("uint8"),
        labels=_labels,
    )
DEFECT = DefectConfig(n=5, dim=3, repeats=1)
TINY: dict[str, Any] = {
    "adversarial": AdversarialConfig(
        places=((NETWORK, 1, 0, 20.0, 0.5), ("absent", 0, 0, 1.0, None)), lengths=(2, 4, 8)
    ),
    "backward_memory": MemoryConfig(depths=(2, 8), tokens=9, dim=4),
    "bound_against_attack": BoundConfig(heads=(1,), eps=(0.01, 0.5), draws=1, steps=10, restarts=1),
    "certified_cifar10": TrainedConfig(str(PICTURES), 2, 2, (0.1,), 0.1, 2, 1),
    "certified_digits": DigitsConfig(images=2, eps=(0.1,), steps=2, restarts=1),
    "certified_strips": StripsConfig("", 2, 2, (0.1,), 0.1, 2, 1),
    "certified_svhn": TrainedConfig(str(PICTURES), 2, 2, (0.1,), 0.1, 2, 1),
    "constant_against_radius": TEXT,
    "duplicated_text": DuplicatedConfig(models=(NETWORK,), n=6, samples=1),
    "ellipses": EllipsesConfig(),
    "equal_cost_attacks": CostConfig(eps=(1e-3, 1e-2), draws=2, n=4, dim=2),
    "equivariance": DEFECT,
    "euler_order": EulerConfig((8, 16, 32), ("softmax",), 1, 4),
    "explosion": ExplosionConfig(points=1, draws=1),
    "few_diracs": DiracsConfig(draws=1, radii=(0.5, 1.5), atoms=3, starts=3, steps=20),
    "gaussian_against_particles": AgreementConfig(
        sizes=(20, 400), repeats=4, names=("softmax", "l2")
    ),
    "growth": TEXT,
    "heads_by_layers": HeadsConfig(models=(NETWORK,), decoder=None, n=8, samples=2),
    "invertible_layers": BackConfig((0.5,), 2, 4, 2),
    "large_radius": LargeConfig(n=4, draws=2, steps=6),
    "layer_norm": NormConfig(models=(NETWORK,), n=8, samples=2),
    "line": LineConfig(points=2, draws=2),
    "lipschitz_against_length": LengthConfig((2, 3, 4), (2.0,), starts=2, steps=3),
    "lipschitz_against_radius": RadiusConfig(3, (0.25, 3.0), starts=2, steps=3),
    "masked_against_unmasked": MaskConfig(models=(NETWORK,), lengths=(2, 4, 8), samples=2),
    "mean_field": MeanFieldConfig(
        sizes=(8, 128), reference=256, repeats=3, names=("softmax", "linear")
    ),
    "mixed": DrawsConfig(draws=8, points=3, limit=0.9),
    "plane": PlaneConfig(points=2, draws=1),
    "point_cloud_flow": CloudConfig(n=4, blocks=6, steps=50, batch=48, held=96, fitted=4000),
    "positional_encoding": DEFECT,
    "pushforward": DEFECT,
    "radius_against_length": TEXT,
    "rank_histogram": RankConfig(dims=(3,), runs=2),
    "released_estimator": TEXT,
    "sphere_clustering": SphereConfig(n=24, betas=(1.0, 9.0), end=30.0, frames=20),
    "splitting_gain": GainConfig(strengths=(1.0,), draws=2),
    "to_zero": ToZeroConfig(points=1, draws=1),
    "tokeniser": TokeniserConfig(models=(NETWORK,), n=40),
    "tokens_through_depth": DepthConfig(models=(NETWORK,), n=8, samples=1),
    "two_lines": DrawsConfig(draws=8, points=3, limit=0.9),
    "two_regimes": RegimesConfig((2.0,), 10**7, 3),
}
CHOSEN = {"mixed": (7,), "two_lines": (6,)}
"""The draws of matrices that are computed here: one in which softmax does both, one in which
everything stays bounded. The verdicts say how rare they are.
"""


@cache
def network() -> Any:
    """Two layers of GPT-2 with norms that are no identity, in eval mode."""
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 50}
        module = transformers.GPT2Model(
            transformers.GPT2Config(
                **sizes, bos_token_id=0, eos_token_id=0, attn_implementation="eager"
            )
        ).eval()
        for parameter in module.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    return load(module.requires_grad_(False))


def bench() -> Workbench:
    """A workbench that knows the tiny network and the ids of its text, and no model beside it."""
    made, ids = (
        Workbench(),
        torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(0)),
    )
    made.put(("model", NETWORK, "cpu", "float32"), network())
    made.put(("ids", NETWORK, "alice"), ids)
    return made


shared_bench = cache(bench)


def chosen(name: str) -> list[Any]:
    cells = list(FIGURES[name].cells(TINY[name], shared_bench()))
    return [cell for cell in cells if name not in CHOSEN or cell.draw in CHOSEN[name]]


@cache
def rows_of(name: str) -> tuple[Any, ...]:
    study, workbench = FIGURES[name], shared_bench()
    return tuple(row for cell in chosen(name) for row in study.run(cell, workbench))


def table_of(name: str, rows: tuple[Any, ...] | list[Any]) -> Table:
    study: Study = FIGURES[name]
    kinds: dict[str, list[Any]] = {kind: [] for kind in study.tables}
    for row in rows:
        check_row(row)
        kinds[study.kind(row)].append(row)
    return Table(study, TINY[name], kinds)
