"""From bounds of layers to certified radii of a network."""

from attnscope.certify.certificate import Certificate
from attnscope.certify.network import certify

__all__ = ["Certificate", "certify"]
