"""How far images can be changed before a network may read them otherwise: proved, and attacked."""

from attnscope.studies.certify.rows import CertifyConfig, Row
from attnscope.studies.certify.study import Certify

__all__ = ["Certify", "CertifyConfig", "Row"]
