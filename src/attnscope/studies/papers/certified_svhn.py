"""Certified against attacked accuracy over eps on SVHN, where its images are here [havens24]."""

from __future__ import annotations

from attnscope.studies.papers._trained import TrainedFigure


class CertifiedSvhn(TrainedFigure):
    """Certified against attacked accuracy on SVHN, of a small network trained here."""

    name = "certified_svhn"
    figure = "certified accuracy on SVHN"
    seconds = (12, 900)
    data = "svhn"
