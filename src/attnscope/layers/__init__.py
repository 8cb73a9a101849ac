"""Layers that know their bounds over a ball, and the contract that makes one of your own such a
layer.
"""

from attnscope.layers.activations import (
    Activation,
    Entrywise,
    LeakyReLU,
    QuadraticReLU,
    ReLU,
    Sigmoid,
    Softplus,
    Tanh,
    activation,
)
from attnscope.layers.attention import ResidualAttention
from attnscope.layers.contract import (
    AffineLayer,
    Layer,
    OverBall,
    Remainder,
    Unbounded,
    affine,
    same,
)
from attnscope.layers.embedding import PatchEmbedding, TokenEmbedding
from attnscope.layers.head import POOLINGS, Head
from attnscope.layers.mlp import MLP, SLL, ConvexPotential, ResidualMLP
from attnscope.layers.norms import NORMS, Centre, LayerNorm, RMSNorm, norm_layer
from attnscope.layers.torch_modules import torch_layer

__all__ = [
    "MLP",
    "NORMS",
    "POOLINGS",
    "SLL",
    "Activation",
    "AffineLayer",
    "Centre",
    "ConvexPotential",
    "Entrywise",
    "Head",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "OverBall",
    "PatchEmbedding",
    "QuadraticReLU",
    "RMSNorm",
    "ReLU",
    "Remainder",
    "ResidualAttention",
    "ResidualMLP",
    "Sigmoid",
    "Softplus",
    "Tanh",
    "TokenEmbedding",
    "Unbounded",
    "activation",
    "affine",
    "norm_layer",
    "same",
    "torch_layer",
]
