"""Layers that know their bounds over a ball, and the contract that makes one of your own such a
layer.
"""

from attnscope.layers.activations import (
    Activation,
    Entrywise,
    LeakyReLU,
    QuadraticReLU,
    ReLU,
    Softplus,
    activation,
)
from attnscope.layers.along import Along, Follows, Tangent
from attnscope.layers.attention import ResidualAttention
from attnscope.layers.contract import (
    AffineLayer,
    Guided,
    Layer,
    OverBall,
    Recalling,
    Remainder,
    Unbounded,
    affine,
    same,
)
from attnscope.layers.embedding import PatchEmbedding, TokenEmbedding, isometry
from attnscope.layers.feed_forward import FeedForward
from attnscope.layers.head import Head
from attnscope.layers.mlp import MLP, SLL, ConvexPotential, ResidualMLP
from attnscope.layers.norms import NORMS, Centre, LayerNorm, RMSNorm, norm_layer
from attnscope.layers.pooling import MaxPool
from attnscope.layers.residual import Composite, Residual
from attnscope.layers.self_attention import SelfAttention
from attnscope.layers.smooth import GELU, Sigmoid, SiLU, Smooth, Tanh, TanhGELU
from attnscope.layers.tokens import (
    ClassToken,
    FirstToken,
    MeanToken,
    Normalise,
    Positions,
    Tokens,
)
from attnscope.layers.torch_modules import torch_layer

__all__ = [
    "Along",
    "Activation",
    "AffineLayer",
    "Centre",
    "ClassToken",
    "Composite",
    "ConvexPotential",
    "Entrywise",
    "FeedForward",
    "Follows",
    "FirstToken",
    "GELU",
    "Head",
    "Guided",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "MLP",
    "MaxPool",
    "MeanToken",
    "NORMS",
    "Normalise",
    "OverBall",
    "PatchEmbedding",
    "Positions",
    "QuadraticReLU",
    "RMSNorm",
    "ReLU",
    "Recalling",
    "Remainder",
    "Residual",
    "ResidualAttention",
    "ResidualMLP",
    "SLL",
    "SelfAttention",
    "SiLU",
    "Sigmoid",
    "Smooth",
    "Softplus",
    "Tangent",
    "Tanh",
    "TanhGELU",
    "TokenEmbedding",
    "Tokens",
    "Unbounded",
    "activation",
    "affine",
    "isometry",
    "norm_layer",
    "same",
    "torch_layer",
]
