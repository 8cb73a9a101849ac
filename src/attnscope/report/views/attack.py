"""The page of `attack`: the worst input that was found, below what is proved."""

from __future__ import annotations

from attnscope.report.content import Number, Opening, Standing
from attnscope.report.markup import number
from attnscope.report.view import View
from attnscope.studies import Table
from attnscope.studies.attack import Attack


class AttackView(View):
    kind = Attack

    def opening(self, table: Table) -> Opening:
        words, numbers = [], list[Number]()
        for row in table["worst"][:1]:
            words.append(
                f"Among all inputs of {row.n} tokens in a ball of radius {number(row.radius)},"
                f" which one does {row.target} stretch most? The search found the one drawn below."
            )
            numbers.append(
                Number(
                    "largest local constant found",
                    number(row.value),
                    Standing.PROVED,
                    "Reached by the input that was found, so the largest is at least this.",
                )
            )
            if row.bound is not None:
                numbers.append(
                    Number(
                        "no input exceeds",
                        number(row.bound),
                        Standing.PROVED,
                        f"{row.bound_name}; assumes {row.bound_assumes}.",
                    )
                )
        for split in table["split"][:1]:
            words.append(
                "Splitting a token into halves that move apart can hurt more than moving it: the"
                " gain says how much."
            )
            numbers.append(
                Number(
                    "gain of splitting",
                    number(split.gain),
                    Standing.ESTIMATE,
                    f"{number(split.split)} for halves apart, {number(split.move)} for moves"
                    + ("." if split.converged else "; not converged."),
                )
            )
        if not words:
            words.append("The largest local constant found, by number of tokens and radius.")
        target = next(
            (
                row.target
                for rows in table.kinds
                for row in table[rows][:1]
                if hasattr(row, "target")
            ),
            "attention",
        )
        return Opening(f"The worst inputs of {target}", words, numbers)
