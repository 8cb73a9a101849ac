"""A compact Transformer whose attention is any variant and whose layers know their bounds."""

from attnscope.nets._layer import Layer, LinearLayer
from attnscope.nets.activations import Activation, QuadraticReLU, ReLU, Softplus
from attnscope.nets.attention import ResidualAttention
from attnscope.nets.config import Config
from attnscope.nets.embedding import PatchEmbedding, TokenEmbedding
from attnscope.nets.files import describe, load, save, shipped
from attnscope.nets.head import Head
from attnscope.nets.invertible import Invertible
from attnscope.nets.mlp import MLP, SLL, ConvexPotential, ResidualMLP
from attnscope.nets.norms import Centre, LayerNorm, RMSNorm
from attnscope.nets.transformer import Transformer

__all__ = [
    "MLP",
    "SLL",
    "Activation",
    "Centre",
    "Config",
    "ConvexPotential",
    "Head",
    "Invertible",
    "Layer",
    "LayerNorm",
    "LinearLayer",
    "PatchEmbedding",
    "QuadraticReLU",
    "RMSNorm",
    "ReLU",
    "ResidualAttention",
    "ResidualMLP",
    "Softplus",
    "TokenEmbedding",
    "Transformer",
    "describe",
    "load",
    "save",
    "shipped",
]
