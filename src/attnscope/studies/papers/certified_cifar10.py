"""Certified against attacked accuracy over eps on CIFAR-10, where its images are [havens24]."""

from __future__ import annotations

from attnscope.studies.papers._trained import TrainedFigure


class CertifiedCifar10(TrainedFigure):
    """Certified against attacked accuracy on CIFAR-10, of a small network trained here."""

    name = "certified_cifar10"
    figure = "certified accuracy on CIFAR-10"
    seconds = (12, 900)
    data = "cifar10"
