"""Hugging Face's ViT and DeiT image classifiers, by the exact classes of their parts."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from attnscope.attention import Heads
from attnscope.bounds import NoBound
from attnscope.certification.reading.pristine import check_pristine, from_a_library
from attnscope.certification.reading.rules import full_name, rule
from attnscope.layers import (
    GELU,
    ClassToken,
    FeedForward,
    FirstToken,
    LayerNorm,
    Positions,
    ReLU,
    Residual,
    SelfAttention,
    SiLU,
    TanhGELU,
    Tokens,
)
from attnscope.layers.activations import Entrywise

BASE = "transformers.models"
ACTIVATIONS: dict[str, type[Entrywise]] = {
    "transformers.activations.GELUActivation": GELU,
    "transformers.activations.GELUTanh": TanhGELU,
    "transformers.activations.NewGELUActivation": TanhGELU,
    "transformers.activations.SiLUActivation": SiLU,
    "torch.nn.modules.activation.GELU": GELU,
    "torch.nn.modules.activation.SiLU": SiLU,
    "torch.nn.modules.activation.ReLU": ReLU,
}
"""Classes that `config.hidden_act` can stand for."""
IMPLEMENTATIONS = ("eager", "sdpa")


@rule(f"{BASE}.vit.modeling_vit.ViTForImageClassification")
def vit(module: nn.Module) -> nn.Module:
    return _classifier(module, "vit", "ViT", ("cls_token",))


@rule(f"{BASE}.deit.modeling_deit.DeiTForImageClassification")
def deit(module: nn.Module) -> nn.Module:
    return _classifier(module, "deit", "DeiT", ("cls_token", "distillation_token"))


def _classifier(module: Any, family: str, name: str, extra: tuple[str, ...]) -> nn.Module:
    """Patches, learned tokens and positions, blocks, the last norm of the class token, the head."""
    here = _Family(f"{BASE}.{family}.modeling_{family}.{name}")
    model = here.part(getattr(module, family), "Model")
    if model.pooler is not None:
        raise NoBound(f"{name} classifiers are read without pooler.")
    embeddings = here.part(model.embeddings, "Embeddings")
    patches = here.part(embeddings.patch_embeddings, "PatchEmbeddings")
    here.plain(patches.projection, nn.Conv2d)
    here.plain(embeddings.dropout, nn.Dropout, nn.Identity)
    here.plain(model.layers, nn.ModuleList)
    learned: list[Tensor] = [getattr(embeddings, token)[0] for token in extra]
    head = module.classifier
    here.plain(head, nn.Linear)
    here.plain(model.layernorm, nn.LayerNorm)
    made = nn.Sequential()
    made.add_module("patches", patches.projection)
    made.add_module("tokens", Tokens())
    for token, value in zip(reversed(extra), reversed(learned), strict=True):
        made.add_module(token, ClassToken(value))
    made.add_module("positions", Positions(embeddings.position_embeddings[0]))
    for number, block in enumerate(model.layers):
        made.add_module(f"block {number}", _block(here, block))
    made.add_module("class token", FirstToken())
    made.add_module("last norm", LayerNorm(model.layernorm))
    made.add_module("head", head)
    return made


def _block(here: _Family, block: Any) -> nn.Module:
    here.part(block, "Layer")
    mlp = here.part(block.mlp, "MLP")
    here.plain(block.dropout, nn.Dropout, nn.Identity)
    for part in (block.layernorm_before, block.layernorm_after):
        here.plain(part, nn.LayerNorm)
    for part in (mlp.fc1, mlp.fc2):
        here.plain(part, nn.Linear)
    branch = FeedForward(
        mlp.fc1.weight, mlp.fc1.bias, _activation(mlp), mlp.fc2.weight.mT, mlp.fc2.bias
    )
    attention = SelfAttention(_heads(here, block.attention))
    first, second = nn.Sequential(), nn.Sequential()
    first.add_module("norm before attention", LayerNorm(block.layernorm_before))
    first.add_module("attention", attention)
    second.add_module("norm before mlp", LayerNorm(block.layernorm_after))
    second.add_module("mlp", branch)
    return nn.Sequential(Residual(first), Residual(second))


def _heads(here: _Family, module: Any) -> Heads:
    attention = here.part(module, "Attention")
    _check_implementation(attention)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    for part in projections:
        here.plain(part, nn.Linear)
    count, size = attention.num_attention_heads, attention.head_dim
    query, key, value = (part.weight.reshape(count, size, -1) for part in projections[:3])
    q, k, v = (
        None if part.bias is None else part.bias.reshape(count, size) for part in projections[:3]
    )
    written = projections[3]
    output = written.weight.reshape(-1, count, size).movedim(1, 0)
    scale = float(attention.scaling)
    return Heads(query, key, value, output, q, k, v, written.bias, scale)


def _check_implementation(attention: Any) -> None:
    """The function that a module finds by name to attend with must be the library's own."""
    name, beside = attention.config._attn_implementation, vars(sys.modules[attention.__module__])
    if name not in IMPLEMENTATIONS:
        raise NoBound(
            "Hugging Face's classifiers are read with the attention"
            f" {' or '.join(IMPLEMENTATIONS)}, got {name!r}."
        )
    registry, eager = beside["ALL_ATTENTION_FUNCTIONS"], beside["eager_attention_forward"]
    if not from_a_library(registry.get_interface(name, eager)):
        raise NoBound(f"the attention {name!r} of Hugging Face was replaced. Restore it.")


def computes_in_single(network: nn.Module) -> bool:
    """Whether a part of it works in single precision whatever its weights are in: the softmax of
    Hugging Face's eager attention does.
    """
    configs = (getattr(part, "config", None) for part in network.modules())
    return any(getattr(one, "_attn_implementation", None) == "eager" for one in configs)


def _activation(mlp: Any) -> Entrywise:
    given = mlp.activation_fn
    name = full_name(type(given))
    tanh = name.endswith("activation.GELU") and given.approximate != "none"
    python = getattr(given, "act", nn.functional.gelu) is not nn.functional.gelu
    if name not in ACTIVATIONS or tanh or (python and "GELUActivation" in name):
        raise NoBound(
            f"an MLP with the activation {given!r} has no bound; known are GELU in its forms, SiLU"
            " and ReLU."
        )
    check_pristine(given)
    return ACTIVATIONS[name]()


class _Family:
    """The classes of one family, by the start of their full names."""

    def __init__(self, start: str) -> None:
        self.start = start

    def part(self, module: Any, name: str) -> Any:
        """This module, which must be exactly of the family's class for it."""
        if full_name(type(module)) != self.start + name:
            raise NoBound(f"expected a {(self.start + name).rsplit('.', 1)[1]}, got {_of(module)}.")
        check_pristine(module)
        return module

    def plain(self, module: Any, *kinds: type) -> None:
        """A module of torch, exactly: adapters and quantised layers compute something else."""
        if not isinstance(module, nn.Module) or type(module) not in kinds:
            raise NoBound(f"expected a plain {kinds[0].__name__}, got {_of(module)}.")
        check_pristine(module)


def _of(module: object) -> str:
    return f"a {full_name(type(module))}"
