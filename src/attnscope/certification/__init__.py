"""From bounds of layers to certified radii of a network."""

from attnscope.certification.certificate import Certificate
from attnscope.certification.network import certify
from attnscope.certification.smoothing import Smoothed, smoothed

__all__ = ["Certificate", "Smoothed", "certify", "smoothed"]
