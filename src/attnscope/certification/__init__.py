"""From bounds of layers to certified radii of a network."""

from attnscope.certification.certificate import Certificate
from attnscope.certification.network import certify

__all__ = ["Certificate", "certify"]
