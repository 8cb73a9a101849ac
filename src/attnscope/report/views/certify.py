"""The page of `certify`: how many images are right, proved right nearby, and broken by attack."""

from __future__ import annotations

from attnscope.report.content import Number, Opening, Standing
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.certify.smoothing import smooth_summaries
from attnscope.studies.certify.study import Certify
from attnscope.studies.certify.summary import eps_names, summaries, title


class CertifyView(View):
    kind = Certify

    def opening(self, table: Table) -> Opening:
        if not len(table):
            return _smoothed(table)
        made = summaries(table.rows)["network"]
        names, line = eps_names(table.config), made.lines[len(made.lines) // 2]
        eps = names.get(line.eps, f"{line.eps:.4g}")
        words = [
            "A certificate is a proof that no image within a distance eps (l2 over all pixels) of a"
            " given one is read as another class.",
            f"{title(table['networks'], made.images)}; {_percent(made.clean)} are read right.",
        ]
        numbers = [
            Number(
                f"right, and right for all within {eps}",
                _percent(line.certified),
                Standing.PROVED,
                "No attack can ever push the accuracy below this share of these images.",
            ),
            Number(
                f"still right after an attack within {eps}",
                _percent(line.attacked),
                Standing.ESTIMATE,
                "What this attack did not break; a stronger one may. No proof can exceed it.",
            ),
            Number(
                "mean certified radius",
                f"{made.radius:.4f}",
                Standing.PROVED,
                "Over all images, 0 where the image is misread.",
            ),
        ]
        return Opening("How far can the output move?", words, numbers)


def _smoothed(table: Table) -> Opening:
    """The page of a run without proofs."""
    one = smooth_summaries(table["smoothed"], table.config.eps)["network"]
    names, place = eps_names(table.config), len(one.eps) // 2
    eps = names.get(one.eps[place], f"{one.eps[place]:.4g}")
    words = [
        "Randomized smoothing: the class that noisy copies of an image are read as most often. It"
        " is another classifier than the network; its radii hold but for a small probability.",
        f"{title(table['networks'], one.images)}; {_percent(one.clean)} are read right.",
    ]
    numbers = [
        Number(
            f"right, and right for all within {eps}",
            _percent(one.certified[place]),
            Standing.PROBABLE,
            f"Each radius is wrong with probability at most {one.alpha:g}.",
        ),
        Number(
            "mean certified radius",
            f"{one.radius:.4f}",
            Standing.PROBABLE,
            "Over all images, 0 where the image is misread or abstained from.",
        ),
    ]
    return Opening("How far can the output move?", words, numbers)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
