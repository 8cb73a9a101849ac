"""`Monitor`: the sensitivity of layers while a network is trained, as a plain dict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.models._load import load
from attnscope.models._parts import Part, check_part
from attnscope.models._tapping import tap
from attnscope.operators import LinearOperator, jacobian
from attnscope.operators.lanczos import Lanczos, Ritz
from attnscope.operators.starts import draw
from attnscope.validation import check_kind

FRESH = 0.3
"""The random part of a warm start, relative to the old direction: a new one must be found too."""

Report = dict[str, float]


@final
class Monitor:
    r"""Watches layers of a network in training on one fixed text.

    Every report is a plain dict. For each layer k:

    - `layer{k}/sigma`: a lower bound of the largest singular value of the part's Jacobian at the
      tokens that the network now has there, $\|Jz\|/\|z\|$ for the best $z$ of a few pairs of
      products, up to the rounding of the network's own dtype. The search starts from the direction
      of the report before. How far it is below the truth is not known; `attnscope.measure` brackets
      it;
    - `layer{k}/largest_score`, `layer{k}/largest_column_sum` (how much the most read token is read,
      over all rows, the largest of any head), `layer{k}/entropy` (mean over rows and heads), where
      the attention can be heard.

    `seconds` is what the report took. Nothing of the training changes: the network is set to eval
    mode for the report and back, gradients and the random state are left alone.

    Args:
        module: The network, in training or not. It is read anew at every report.
        source: One sequence: token ids of shape (n,), or tokens (n, d) for networks that read them.
        layers: Which; None for all.
        every: A report at step 0 and at every so-manyth step.
        part: The map, as in `Model.function`.
        pairs: Products with J and its adjoint per layer and report.
        seed: Of the first directions.
    """

    def __init__(
        self,
        module: nn.Module,
        source: Tensor,
        layers: Sequence[int] | None = None,
        *,
        every: int = 50,
        part: Part = "attention",
        pairs: int = 4,
        seed: int = 0,
    ) -> None:
        check_kind("module", module, nn.Module)
        for name, value in (("every", every), ("pairs", pairs)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        check_part(part)
        self.module, self.source, self.every, self.part = module, source, every, part
        self.history: list[Report] = []
        """Every report so far."""
        self._pairs, self._seed = pairs, seed
        self._directions: dict[int, Tensor] = {}
        with still(module):
            self._model = load(module)
            self.layers = tuple(range(self._model.layers) if layers is None else layers)
            if not self.layers:
                raise ValueError("layers must name at least one layer, got none.")
            for layer in self.layers:
                x = self._model.tokens(source, layer, part)
            if x.ndim != 2:
                raise ValueError("a monitor watches one sequence: pass ids of shape (n,).")

    def __call__(self, step: int) -> Report | None:
        """The report of this step, if it has one."""
        return self.report(step) if step % self.every == 0 else None

    def report(self, step: int = 0) -> Report:
        """Look at the network now."""
        begun = time.perf_counter()
        found: Report = {"step": float(step)}
        with still(self.module):
            for layer in self.layers:
                found |= {f"layer{layer}/{name}": v for name, v in self._layer(layer).items()}
        found["seconds"] = time.perf_counter() - begun
        self.history.append(found)
        return found

    def _layer(self, layer: int) -> Report:
        model = self._model
        x = model.tokens(self.source, layer, self.part)
        # Its own graph does not lead to the weights, so nothing here can reach their gradients.
        with frozen(self.module):
            op = jacobian(model.function(layer, self.part), x)
            made = {"sigma": self._sigma(layer, op)}
            if self._heard(layer):
                read = x if self.part == "attention" else model.tokens(self.source, layer)
                heard = tap(model, layer, read)
                made["largest_score"] = float(heard.largest_score.max())
                made["largest_column_sum"] = float(heard.column_sums.max())
                made["entropy"] = float(heard.entropy.mean())
        return made

    def _heard(self, layer: int) -> bool:
        return self._model.tapped and self._model.attends(layer)

    def _sigma(self, layer: int, op: LinearOperator) -> float:
        flat = op.flat()
        fresh = draw(flat, self._seed, attempt=len(self.history), first=layer).vectors
        old = self._directions.get(layer)
        start = fresh if old is None else old.to(fresh) + FRESH * fresh
        lanczos = Lanczos(flat, start / torch.linalg.vector_norm(start))
        for _ in range(min(self._pairs, flat.shape[1])):
            lanczos.step()
            if lanczos.process.finished.all():
                break
        top = Ritz.of(lanczos.process).right[:, :1]
        best = lanczos.vectors(top, np.zeros(1, dtype=int))[:, 0]
        self._directions[layer] = best
        long, short = (
            float(torch.linalg.vector_norm(v, dtype=torch.float64)) for v in (flat.mv(best), best)
        )
        return long / short if short > 0 else 0.0


@contextmanager
def still(module: nn.Module) -> Iterator[None]:
    """The network in eval mode; every part goes back to the mode that it had."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient."""
    asking = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for parameter in asking:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def trainer_callback(monitor: Monitor, log: Callable[[Report], object] | None = None) -> Any:
    """A `transformers.TrainerCallback`: reports go to the trainer's `log_history` and to `log`."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError('this needs transformers: pip install "attnscope[hf]".') from error

    class Watching(TrainerCallback):  # type: ignore[misc]
        def _look(self, state: Any) -> None:
            found = monitor(state.global_step)
            if found is not None:
                state.log_history.append(dict(found, step=state.global_step))
                if log is not None:
                    log(found)

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._look(state)

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._look(state)

    return Watching()


def lightning_callback(monitor: Monitor, log: Callable[[Report], object] | None = None) -> Any:
    """A Lightning `Callback`: reports go to the module's `log_dict` and to `log`."""
    names = [name for name in ("lightning", "pytorch_lightning") if find_spec(name) is not None]
    if not names:
        raise ImportError("this needs Lightning: pip install lightning.")
    place = "lightning.pytorch" if names[0] == "lightning" else names[0]
    kind: Any = import_module(place).Callback

    class Watching(kind):  # type: ignore[misc]
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            found = monitor(trainer.global_step)
            if found is not None:
                pl_module.log_dict({name: v for name, v in found.items() if name != "step"})
                if log is not None:
                    log(found)

    return Watching()
