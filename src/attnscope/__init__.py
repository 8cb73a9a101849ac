"""attnscope: the regularity and dynamics of attention, as a map between probability measures."""

from attnscope import attacks, bounds, nets
from attnscope.attention import Affine, Attention, Heads, NoClosedForm, variants
from attnscope.attention.exponential import Exponential
from attnscope.attention.l2 import L2
from attnscope.attention.linear import Linear
from attnscope.attention.sigmoid import Sigmoid
from attnscope.attention.sinkhorn import NotConverged, Sinkhorn
from attnscope.attention.softmax import Softmax
from attnscope.certification import Certificate, certify
from attnscope.flows import Ellipsoid, Sphere, Trajectory, flow, residual
from attnscope.measures import Gaussian, Particles
from attnscope.models import Model, ModelNotice, load
from attnscope.operators import (
    LinearOperator,
    SingularValues,
    SpectralNorm,
    jacobian,
    singular_values,
    spectral_norm,
)
from attnscope.transport import bures, conditional_wasserstein, wasserstein

__version__ = "0.1.0"

__all__ = [
    "Affine",
    "Attention",
    "Certificate",
    "Ellipsoid",
    "Exponential",
    "Gaussian",
    "Heads",
    "L2",
    "Linear",
    "LinearOperator",
    "Model",
    "ModelNotice",
    "NoClosedForm",
    "NotConverged",
    "Particles",
    "Sigmoid",
    "SingularValues",
    "Sinkhorn",
    "Softmax",
    "SpectralNorm",
    "Sphere",
    "Trajectory",
    "attacks",
    "bounds",
    "bures",
    "certify",
    "conditional_wasserstein",
    "flow",
    "jacobian",
    "load",
    "nets",
    "residual",
    "singular_values",
    "spectral_norm",
    "variants",
    "wasserstein",
]
