"""`attnscope measure MODEL --from A --to B`: the options of `measure` as a span."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnscope.cli._options import numbers
from attnscope.studies.span import SpanConfig

LENGTH = "128"


def given(value: Any, usual: Any) -> Any:
    """An option, or what is usual where it was left out."""
    return usual if value is None else value


def is_span(options: Mapping[str, Any]) -> bool:
    """Whether a span was asked for; refuses options that mean nothing then."""
    asked = options["start"] is not None or options["stop"] is not None
    if not asked:
        if options["top"] is not None:
            raise ValueError("--top is for spans: add --from and --to.")
        return False
    for name, usual in (("layers", "all"), ("part", "attention"), ("released_estimator", False)):
        if options[name] != usual:
            raise ValueError(
                f"a span goes through whole blocks: leave out --{name.replace('_', '-')}."
            )
    return True


def span_config(options: Mapping[str, Any]) -> SpanConfig:
    """Options that were left out keep what is usual for spans: one sequence, n = 128, 1e-2."""
    estimate = options["estimate"]
    return SpanConfig(
        model=options["model"],
        text=options["text"],
        start=given(options["start"], "0"),
        stop=given(options["stop"], "last"),
        lengths=tuple(numbers("--lengths", given(options["lengths"], LENGTH))),
        samples=given(options["samples"], 1),
        top=given(options["top"], 1),
        tol=given(options["tol"], 1e-4 if estimate else 1e-2),
        failure_probability=None if estimate else options["certify"],
        device=options["device"],
        dtype=options["dtype"],
        seed=options["seed"],
    )
