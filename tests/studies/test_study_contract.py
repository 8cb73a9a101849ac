"""What every study in the folder promises, checked on its fast config."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest

from attnscope.studies import Cell, Study, Table, Workbench, find, named
from attnscope.studies.study import config_fields

STUDIES = find()
BENCH = Workbench()
"""Networks are loaded once."""


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_named_and_has_configs_of_names_and_numbers(name: str) -> None:
    study = STUDIES[name]
    assert study.name == name
    assert isinstance(study, Study)
    assert not vars(study)  # no state
    assert type(named(name)) is type(study)  # from its own file
    for config in (study.Config(), study.fast):
        assert dataclasses.is_dataclass(config)
        hash(config)
        assert study.read_config(json.loads(json.dumps(config_fields(config)))) == config
    assert all(hasattr(row, "_fields") for row in study.tables.values())


@pytest.mark.parametrize("name", ["", "nobody", "papers", "store", "..measure", "measure.study"])
def test_what_is_no_study_has_no_name(name: str) -> None:
    assert named(name) is None


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the data sets that do not ship, tiny."""
    folder, labels = tmp_path_factory.mktemp("pictures"), np.arange(20) % 2
    for name in ("cifar10", "svhn"):
        pixels = np.zeros((20, 8, 8, 3), dtype=np.uint8) + labels[:, None, None, None] * 100
        np.savez(folder / f"{name}.npz", images=pixels.astype(np.uint8), labels=labels)
    return str(folder)


@pytest.mark.parametrize("name", STUDIES)
def test_cells_are_hashable_picklable_and_round_trip(name: str, pictures: str) -> None:
    study = STUDIES[name]
    config = study.fast
    if getattr(config, "data", None) == "":  # the cache, which may be empty
        config = dataclasses.replace(config, data=pictures)
    cells = list(study.cells(config, BENCH))
    assert cells
    assert len({cell.key for cell in cells}) == len(cells) == len(set(cells))
    for cell in cells:
        assert isinstance(cell, Cell)
        assert pickle.loads(pickle.dumps(cell)) == cell
        assert type(cell).from_dict(json.loads(json.dumps(cell.as_dict()))) == cell
        assert dataclasses.replace(cell, failure_probability=0.5).key == cell.key
    again = list(study.cells(config, BENCH))
    assert [cell.key for cell in again] == [cell.key for cell in cells]


@pytest.mark.parametrize("name", STUDIES)
def test_an_empty_table_is_no_mistake(name: str) -> None:
    """A run that was stopped before its first cell still ends in order."""
    study = STUDIES[name]
    table: Any = Table(study, study.fast, {})
    assert table.summary() == []
    assert table.figures() == {}
    assert study.remarks(table) == []
    assert isinstance(study.verdicts(table), list)
