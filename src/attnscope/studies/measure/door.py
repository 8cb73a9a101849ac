"""`measure`: what the command does, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.data.texts import NAMED
from attnscope.models import Model, load
from attnscope.studies.cell import sha256
from attnscope.studies.driver import run
from attnscope.studies.measure.rows import LENGTHS, MeasureConfig
from attnscope.studies.measure.study import Measure
from attnscope.studies.table import Table
from attnscope.studies.workbench import DTYPES, Workbench, hash_ids
from attnscope.validation import described

READ = ("input_ids", "attention_mask")
"""What of a tokenizer's answer is read."""
Texts = str | Path | Sequence[str] | Tensor
Several = Sequence[str] | Mapping[str, Tensor]
"""Texts that are a sequence each, or what a tokenizer returns for them."""


def measure(
    model: str | Path | nn.Module | Model,
    texts: Texts | Several = "alice",
    lengths: Sequence[int] | None = None,
    *,
    folder: str | Path | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Table:
    """How smooth is the attention of this model on this text?

    Args:
        model: A loaded model, a module in eval mode, or a name that `attnscope.load` knows.
        texts: The text itself, a `Path` to a file, the name of a text that `attnscope` knows, or
            token ids of shape (total,). Several texts, what a tokenizer returns for them
            (`input_ids` with an `attention_mask`: padding is no part of a sequence), or ids of
            shape (B, n): each is a sequence of its own. Images, or embeddings of tokens of shape
            (n, d) or (B, n, d).
        lengths: Numbers of tokens; each is measured on `samples` pieces of the text, or on the
            first tokens of each of several texts that has so many. Without them several texts are
            measured whole.
        folder: Where results are kept, as the command does; without one nothing is written.
        overwrite: Replace results of other options in the folder.
        options: Fields of `studies.measure.MeasureConfig`: layers, heads, samples, part, tol,
            failure_probability, released, bounds, device, dtype, seed, fit_from.

    Returns:
        A table of rows with `.to_pandas()` and `.plot()`; `table["bounds"]` are the proved bounds.
    """
    fields = set(MeasureConfig.__dataclass_fields__) - {"model", "text", "lengths"}
    unknown = sorted(set(options) - fields)
    if unknown:
        raise TypeError(f"measure knows {', '.join(sorted(fields))}, got {unknown[0]!r}.")
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list | range) else value
        for name, value in options.items()
    }
    if isinstance(plain.get("dtype"), torch.dtype):
        plain["dtype"] = str(plain["dtype"]).removeprefix("torch.")
    workbench = Workbench()
    name, kind = put_model(workbench, model, plain)
    several = _count(texts)
    if several is None:
        text = put_text(workbench, name, texts)  # type: ignore[arg-type]
    else:
        text = put_texts(workbench, name, texts)  # type: ignore[arg-type]
        plain = {"samples": several, "whole": lengths is None} | plain
    told = tuple(int(n) for n in (LENGTHS if lengths is None else lengths))
    config = MeasureConfig(name, text, lengths=told, **(plain | kind))
    place = None if folder is None else Path(folder)
    return run(Measure(), config, folder=place, overwrite=overwrite, workbench=workbench).table


def put_model(
    workbench: Workbench, model: str | Path | nn.Module | Model, options: dict[str, Any]
) -> tuple[str, dict[str, str]]:
    """Put a live model on the workbench; its name, its device and its dtype."""
    if isinstance(model, str | Path):
        return str(model), {}
    if not isinstance(model, nn.Module | Model):
        raise TypeError(f"model must be a name, a Model or an nn.Module, got {described(model)}.")
    device, dtype = options.get("device"), options.get("dtype")
    if isinstance(model, Model):
        if device is not None or dtype is not None:
            raise TypeError(
                "a loaded model keeps its device and dtype: pass them to attnscope.load, or pass a"
                " name or a module here."
            )
        live = model
    else:
        live = load(model, device=device, dtype=None if dtype is None else DTYPES.get(dtype))
    kind = {"device": str(live.device), "dtype": str(live.dtype).removeprefix("torch.")}
    workbench.put(("model", live.name, *kind.values()), live)
    return live.name, kind


def _count(texts: Texts | Several) -> int | None:
    """How many sequences these are; None where pieces of one text are cut."""
    if isinstance(texts, Mapping):
        return len(texts["input_ids"].reshape(-1, texts["input_ids"].shape[-1]))
    if isinstance(texts, Tensor):
        own = texts.ndim == 2 and not texts.is_floating_point()
        return len(texts) if own else 1 if texts.is_floating_point() and texts.ndim == 2 else None
    return None if isinstance(texts, str | Path) else len(texts)


def put_texts(workbench: Workbench, model: str, texts: Several | Tensor) -> str:
    """Put several texts on the workbench, each a sequence of its own; their name there."""
    if isinstance(texts, Tensor):
        stacked = texts[None] if texts.is_floating_point() else texts
        return put_text(workbench, model, stacked)
    if isinstance(texts, Mapping):
        held = "".join(hash_ids(texts[part]) for part in sorted(texts) if part in READ)
    else:
        held = "\0".join(texts)
    name = f"{_count(texts)} texts {sha256(held)[:12]}"
    workbench.put(("texts", name), texts)
    return name


def put_text(workbench: Workbench, model: str, texts: Texts) -> str:
    """Put a text or ids on the workbench; the name under which they are there."""
    if isinstance(texts, Path) or (isinstance(texts, str) and texts in NAMED):
        return str(texts)
    if isinstance(texts, Tensor):
        name = f"ids {hash_ids(texts)[:12]}"
        workbench.put(("ids", model, name), texts)
        return name
    whole = texts if isinstance(texts, str) else "\n\n".join(texts)
    name = f"text {sha256(whole)[:12]}"
    workbench.put(("text", name), whole)
    return name
