"""How tokens flow with depth: particles and Gaussians in time, the spaces they live in, and what to measure on the way."""

from attnscope.flows.integrate import flow
from attnscope.flows.spaces import Ellipsoid, Sphere
from attnscope.flows.trajectory import Outcome, Trajectory

__all__ = ["Ellipsoid", "Outcome", "Sphere", "Trajectory", "flow"]
