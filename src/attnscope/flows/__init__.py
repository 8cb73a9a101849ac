"""How tokens flow with depth: particles and Gaussians in time, the spaces they live in, and what to
measure on the way.
"""

from attnscope.flows.each import flow_each
from attnscope.flows.energies import Energy, energy
from attnscope.flows.integrate import flow
from attnscope.flows.layers import residual
from attnscope.flows.shape import Clusters, anisotropy, clusters, rank, spectral_gap_rank
from attnscope.flows.spaces import Ellipsoid, Sphere
from attnscope.flows.stability import distances, radius_bound, stability_bound, velocity_lipschitz
from attnscope.flows.trajectory import Outcome, Trajectory

__all__ = [
    "Clusters",
    "Ellipsoid",
    "Energy",
    "Outcome",
    "Sphere",
    "Trajectory",
    "anisotropy",
    "clusters",
    "distances",
    "energy",
    "flow",
    "flow_each",
    "radius_bound",
    "rank",
    "residual",
    "spectral_gap_rank",
    "stability_bound",
    "velocity_lipschitz",
]
