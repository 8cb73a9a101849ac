"""`python -m fuzz --cases N --seed S`: try N cases; `--case K` runs one and shows what it said."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import get_context

from fuzz.cases import case, prepare
from fuzz.children import BAD, KINDS, Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="which cases")
    parser.add_argument("--case", type=int, help="run this one case and show what it said")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", help="commands, files, calls, or the name of a command or call")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time limit of a case")
    parser.add_argument("--slow", type=float, default=60.0, help="name cases that take longer")
    parser.add_argument(
        "--brief", action="store_true", help="end long cases at the time limit without a question"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    asked = parser.parse_args()
    prepare(warm=not asked.brief)
    if asked.case is not None:
        one = case(asked.seed, asked.case)
        outcome = run(one.task, asked.seconds, asked.brief)
        print(f"{one.title}\n{outcome.shown}\n{outcome.kind}, exit code {outcome.code}")
        return int(outcome.kind in BAD)
    return _many(asked)


def _tried(
    seed: int, only: str | None, seconds: float, brief: bool, number: int
) -> tuple[int, str, str, Outcome | None]:
    one = case(seed, number)
    asked = only is None or only in (one.sort, one.about)
    return number, one.sort, one.title, run(one.task, seconds, brief) if asked else None


def _many(asked: argparse.Namespace) -> int:
    begun, kinds, sorts = time.monotonic(), Counter[str](), Counter[str]()
    numbers = range(asked.first, asked.first + asked.cases)
    tried = partial(_tried, asked.seed, asked.only, asked.seconds, asked.brief)
    with get_context("fork").Pool(asked.jobs) as pool:
        for number, sort, title, outcome in pool.imap_unordered(tried, numbers):
            if outcome is None:
                continue
            kinds[outcome.kind] += 1
            sorts[sort] += 1
            if outcome.kind in BAD:
                last = outcome.shown.splitlines()[-1:] or [""]
                again = f"python -m fuzz --seed {asked.seed} --case {number}"
                print(f"{outcome.kind}: {again}\n  {title[:300]}\n  {last[0][:300]}", flush=True)
            if outcome.seconds > asked.slow:
                print(f"{outcome.seconds:.1f} s: {title[:200]}", flush=True)
            if sum(kinds.values()) % 1000 == 0:
                print(f"{sum(kinds.values())} cases ...", file=sys.stderr, flush=True)
    told = ", ".join(f"{sorts[sort]} {sort}" for sort in sorted(sorts))
    print(f"{sum(kinds.values())} cases ({told}) in {time.monotonic() - begun:.0f} s")
    print(", ".join(f"{kind}: {kinds[kind]}" for kind in KINDS))
    return int(any(kinds[kind] for kind in BAD))


if __name__ == "__main__":
    sys.exit(main())
