"""Points in motion: a slider over time, a button that plays, and a picture of each moment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.report.axes import Axis
from attnscope.report.markup import Markup, data, number, tag

SIZE, EDGE, LEFT = 420, 34, 46


def player(
    times: Sequence[float],
    frames: np.ndarray,
    closed: bool,
    about: str,
    place: str,
    name: str = "t",
) -> Markup:
    """A player of `frames` (times, points, 2); `closed` draws the points as one outline, `name` is
    what time is called.

    Both axes have one scale, so that circles stay circles.
    """
    shown = np.where(np.isfinite(frames), frames, 0.0)
    middle = (shown.max((0, 1)) + shown.min((0, 1))) / 2
    reach = float(np.abs(shown - middle).max()) * 1.05 or 1.0
    across = Axis(middle[0] - reach, middle[0] + reach, LEFT, SIZE - 8)
    up = Axis(middle[1] - reach, middle[1] + reach, SIZE - EDGE, 8)
    places = [[(across.at(float(x)), up.at(float(y))) for x, y in frame] for frame in shown]
    last = places[-1]
    drawn = (
        tag("polygon", points=" ".join(f"{x},{y}" for x, y in last), class_="outline")
        if closed
        else [tag("circle", cx=x, cy=y, r=4, class_="dot") for x, y in last]
    )
    slider = tag(
        "input",
        type="range",
        min=0,
        max=len(times) - 1,
        value=len(times) - 1,
        aria_label="time" if name == "t" else name,
        data_player=place,
    )
    return tag(
        "div",
        tag(
            "svg",
            _ticks(across, up),
            tag("g", drawn),
            viewBox=f"0 0 {SIZE} {SIZE}",
            id=f"{place}-picture",
            class_="player",
            role="img",
            aria_label=about,
        ),
        tag(
            "div",
            tag("button", "Play", type="button", id=f"{place}-play"),
            slider,
            tag("output", f"{name} = {number(times[-1], 3)}", id=f"{place}-time"),
            class_="controls",
        ),
        data(
            f"{place}-frames",
            {"times": list(times), "places": places, "closed": closed, "name": name},
        ),
        class_="figure",
    )


def _ticks(across: Axis, up: Axis) -> list[Markup]:
    return [
        *(
            tag("text", label, x=place, y=SIZE - 12, text_anchor="middle")
            for place, label in across.ticks()
        ),
        *(
            tag("text", label, x=LEFT - 8, y=place + 4, text_anchor="end")
            for place, label in up.ticks()
        ),
        *(
            tag("line", x1=LEFT, x2=SIZE - 8, y1=place, y2=place, class_="grid")
            for place, _ in up.ticks()
        ),
    ]
