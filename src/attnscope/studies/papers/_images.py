"""What the figures of certified accuracy share: rows of `certify`, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import scipy.stats

from attnscope.studies.certify.figures import accuracy_against_eps
from attnscope.studies.certify.rows import HeadRow, NetworkRow, Row
from attnscope.studies.papers._figure import CONFIDENCE, PaperFigure, between, share
from attnscope.studies.study import Verdict
from attnscope.studies.table import Table


class CertifiedFigure(PaperFigure):
    """Certified against attacked accuracy over eps, of a network and of its control."""

    paper = "havens24"
    topic = "certificates"
    tables: ClassVar[dict[str, type]] = {"results": Row, "networks": NetworkRow, "heads": HeadRow}

    def figures(self, table: Table) -> dict[str, Any]:
        if not any(row.network == "network" for row in table):
            return {}
        return {self.name: accuracy_against_eps(table.rows, table["networks"])}

    def verdicts(self, table: Table) -> list[Verdict]:
        made = []
        rows = [row for row in table if row.network == "network"]
        for eps in sorted({row.eps for row in rows}):
            made.append(_certified(eps, [row for row in rows if row.eps == eps]))
        if rows:
            made += [_sound(list(table)), *_content(rows, table["heads"]), *_control(table.rows)]
        return made


def _certified(eps: float, rows: Sequence[Row]) -> Verdict:
    proved, held = sum(row.certified for row in rows), sum(row.broken is False for row in rows)
    interval = scipy.stats.binomtest(proved, len(rows)).proportion_ci(CONFIDENCE, "exact")
    return Verdict(
        f"eps = {eps:.3g}: some accuracy is certified",
        "certificates are not vacuous",
        f"certified {share(proved, len(rows))}, {held} withstand the attack",
        interval.low > 0 if proved else False,
        "the 95 % interval of the certified accuracy lies above 0",
    )


def _sound(rows: Sequence[Row]) -> Verdict:
    wrong = sum(row.unsound for row in rows)
    tried = sum(row.certified for row in rows)
    return Verdict(
        "no attack breaks a certificate",
        "a theorem",
        f"{wrong} of {tried} certificates broken",
        wrong == 0 if tried else None,
        "projected gradients within every certified eps and at every proved radius",
    )


def _content(rows: Sequence[Row], heads: Sequence[HeadRow]) -> list[Verdict]:
    """Whether attention reads what tokens say, by a sign test on images that it changes."""
    first = {row.image: row for row in rows}.values()
    if any(row.content_off is None for row in first):
        return []
    gained = sum(row.predicted == row.label != row.content_off for row in first)
    lost = sum(row.content_off == row.label != row.predicted for row in first)
    sure = gained + lost and scipy.stats.binomtest(gained, gained + lost).pvalue < 1 - CONFIDENCE
    norms = [row.norm for row in heads if row.network == "network"]
    return [
        Verdict(
            "content attention is worth something: the reading is worse with A = 0",
            "a certified network of attention",
            f"{gained} images lost and {lost} won with A = 0 of {len(first)}; norms of A"
            f" {between(norms, '.2f')}",
            (gained > lost) if sure else None,
            "a sign test at 5 %",
        )
    ]


def _control(rows: Sequence[Row]) -> list[Verdict]:
    """The network against the control without content attention, on the images that one of them
    alone certifies at the smallest eps.
    """
    least = min(row.eps for row in rows)
    proved = {
        name: {
            row.image for row in rows if row.network == name and row.certified and row.eps == least
        }
        for name in ("network", "control")
    }
    if not any(row.network == "control" for row in rows):
        return []
    better, worse = (
        len(proved["network"] - proved["control"]),
        len(proved["control"] - proved["network"]),
    )
    sure = better + worse and (
        scipy.stats.binomtest(better, better + worse).pvalue < 1 - CONFIDENCE
    )
    return [
        Verdict(
            "content attention certifies more images than the control without it",
            "attention is worth its price",
            f"{better} images certified by the network alone, {worse} by the control alone, at"
            f" eps = {least:.3g}",
            (better > worse) if sure else None,
            "a sign test at 5 %",
        )
    ]
