"""Running a network so that it can be differentiated: no fused kernels, no compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, final

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@final
class Plain:
    """A context in which this network runs by plain algebra; everything is put back afterwards.

    PyTorch's fused attention has no forward derivative, and its grouped products of experts know no
    float64.
    """

    def __init__(self, module: nn.Module) -> None:
        owners = [getattr(part, "config", None) for part in module.modules()]
        self._configs: list[Any] = [
            config
            for config in {id(owner): owner for owner in owners}.values()
            if hasattr(config, "_experts_implementation_internal")
        ]
        self._doors: list[Any] = [
            config
            for config in {id(owner): owner for owner in owners}.values()
            if hasattr(config, "_attn_implementation_internal")
        ]
        self.door: str | None = None
        """The attention that these models are to use; None leaves them their own."""
        self._compiled = any(
            hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
            for part in module.modules()
        )

    @contextmanager
    def __call__(self, own: bool = False) -> Iterator[None]:
        """With `own` the models keep their own attention, also where there is a door."""
        before = [config._experts_implementation_internal for config in self._configs]
        doors = [config._attn_implementation_internal for config in self._doors]
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            for config in self._configs:
                config._experts_implementation_internal = "eager"
            if self.door is not None and not own:
                for config in self._doors:
                    config._attn_implementation_internal = self.door
            with ExitStack() as stack:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                if self._compiled:
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for config, kind in zip(self._doors, doors, strict=True):
                config._attn_implementation_internal = kind
            for config, kind in zip(self._configs, before, strict=True):
                config._experts_implementation_internal = kind
