"""Shapes in the signatures of the package are checked while tests run: jaxtyping's import hook with
beartype as its checker, to which an int is a float and a method that returns Self is not checked.

A check costs more than most of the functions it stands in front of, and a function that is called
ten thousand times in a test says the same thing ten thousand times. So the first calls of a
function in a test are checked, and after them the 16th, the 32nd, the 64th and so on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep673Exception

Checked = TypeVar("Checked")

FIRST = 8
"""So many calls of a function are checked in each test, one after the other."""

calls: dict[int, int] = {}
"""How often the code of a function was called in this test."""

jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Put the checks in front of every function of the package that is imported from now on."""
    jaxtyping.jaxtyped = spared
    jaxtyping.install_import_hook("attnscope", "shape_checks.checked")


def checked(function: Checked) -> Checked:
    try:
        return beartype(function, conf=BeartypeConf(is_pep484_tower=True))
    except BeartypeDecorHintPep673Exception:
        return function


def spared(*, typechecker: Any) -> Callable[[Any], Any]:
    """What the import hook decorates functions and classes with."""

    def decorate(made: Any) -> Any:
        if not isinstance(made, type):
            return sparing(made, typechecker)
        written = "__dataclass_fields__" in vars(made) and "__init__" in vars(made)
        if written and not hasattr(made.__init__, "__wrapped__"):  # by dataclass, not by hand
            made.__init__ = sparing(made.__init__, typechecker)
        return made

    return decorate


def sparing(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    """The function, which is checked at its first calls in a test and then ever more rarely."""
    key = id(function.__code__)
    if key not in watches:
        watches[key] = Watch(function, typechecker)
    watch = watches[key]

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        count = calls[key] = calls.get(key, 0) + 1
        if count <= FIRST or count & (count - 1) == 0:
            return watch(function, args, kwargs)
        return function(*args, **kwargs)

    return called


class Watch:
    """The checks of one signature. A function inside another one is a new function at every call of
    the outer one: all of them share their checks, since to read a signature takes milliseconds.
    """

    def __init__(self, function: Callable[..., Any], typechecker: Any) -> None:
        self._first, self._typechecker = function, typechecker
        self._now = threading.local()

    def __call__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        __tracebackhide__ = True
        checked = self._checked
        self._now.function = function
        return checked(*args, **kwargs)

    @functools.cached_property
    def _checked(self) -> Callable[..., Any]:
        now = self._now

        def relay(*args: Any, **kwargs: Any) -> Any:
            return now.function(*args, **kwargs)

        first = self._first
        named = FunctionType(
            relay.__code__, first.__globals__, first.__name__, None, relay.__closure__
        )
        return jaxtyped(functools.update_wrapper(named, first), typechecker=self._typechecker)


watches: dict[int, Watch] = {}
"""By the code that they watch; a watch holds a function of this code, so that no other takes its
place.
"""
