"""Small networks of residual branches, as torch and Hugging Face make them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnscope.layers import ClassToken, FirstToken, MeanToken, Positions, Tokens


def encoder(
    seed: int = 0,
    *,
    pre: bool = True,
    activation: str = "gelu",
    depth: int = 1,
    pool: str = "class",
    scale: float = 1.0,
) -> nn.Sequential:
    """A classifier of images 1 x 4 x 4 into 3 classes: patches of 2, width 4, 2 heads."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(
        4, 2, 6, 0.1, activation, batch_first=True, norm_first=pre, layer_norm_eps=1e-2
    )
    norm = nn.LayerNorm(4, eps=1e-2) if pre else None
    body = nn.TransformerEncoder(layer, depth, norm, enable_nested_tensor=False)
    start = [nn.Conv2d(1, 4, 2, 2), Tokens()]
    if pool == "class":
        start.append(ClassToken(torch.randn(1, 4)))
    count = 5 if pool == "class" else 4
    last = FirstToken() if pool == "class" else MeanToken()
    network = nn.Sequential(*start, Positions(torch.randn(count, 4)), body, last, nn.Linear(4, 3))
    with torch.no_grad():
        for part in network.parameters():
            part.add_(0.3 * torch.randn_like(part)).mul_(scale)
    return network.double().eval()


def images(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 4, 4, dtype=torch.float64, generator=generator)


def hugging_face(kind: str, seed: int = 0, **options: object) -> nn.Module:
    """A ViT or DeiT classifier of images 1 x 4 x 4 into 3 classes."""
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=6,
        image_size=4, patch_size=2, num_channels=1, num_labels=3, layer_norm_eps=1e-2, **options,
    )  # fmt: skip
    network = getattr(transformers, f"{kind}ForImageClassification")(config)
    with torch.no_grad():
        for part in network.parameters():
            part.add_(0.5 * torch.randn_like(part))
    return network.double().eval()
