"""`trace`: what the command does, in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from attnscope.models import Model
from attnscope.studies.driver import run
from attnscope.studies.measure.door import Texts, put_model, put_text
from attnscope.studies.table import Table
from attnscope.studies.trace.rows import TraceConfig
from attnscope.studies.trace.study import Trace
from attnscope.studies.workbench import Workbench


def trace(
    model: str | Path | nn.Module | Model,
    text: Texts = "alice",
    *,
    folder: str | Path | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Table:
    """Where do the tokens go, and does the Gaussian theory foresee it?

    Args:
        model: A loaded model, a module in eval mode, or a name that `attnscope.load` knows.
        text: The text itself, several, a `Path` to a file, the name of a text that `attnscope`
            knows, or token ids of shape (total,).
        folder: Where results are kept, as the command does; without one nothing is written.
        overwrite: Replace results of other options in the folder.
        options: Fields of `studies.trace.TraceConfig`: n, samples, gap, device, dtype.

    Returns:
        A table with one row per depth; `table["steps"]` holds the attention steps beside the
        closed form, `table["attention"]` what is read.
    """
    fields = set(TraceConfig.__dataclass_fields__) - {"model", "text"}
    unknown = sorted(set(options) - fields)
    if unknown:
        raise TypeError(f"trace knows {', '.join(sorted(fields))}, got {unknown[0]!r}.")
    workbench = Workbench()
    name, kind = put_model(workbench, model, options)
    config = TraceConfig(name, put_text(workbench, name, text), **(options | kind))
    place = None if folder is None else Path(folder)
    return run(Trace(), config, folder=place, overwrite=overwrite, workbench=workbench).table
