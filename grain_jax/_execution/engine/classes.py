"""Classes that travel by value: what cloudpickle leaves out of them, or does once more."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any

import cloudpickle

from grain_jax._algebra import reach, sentinels
from grain_jax._algebra.mentions import mentions

__all__ = ["arrange", "completed", "families", "reduce"]

Families = list[tuple[type, list[type]]]

_arranged: list[Families] = []  # the classes that nothing else refers to


def reduce(obj: Any) -> tuple[Any, ...] | None:
    """How to pickle a class of arrays of ctypes, `c_int * 4`, which has no name; else None."""
    if type(obj).__name__ != "PyCArrayType" or obj._type_ * obj._length_ is not obj:
        return None
    return operator.mul, (obj._type_, obj._length_)


def completed(kind: type, reduced: Any) -> Any:
    """Adds the full name and the slots of a class, which are given as it is made.

    Code of classes that travel along, and that ran as it was made here, does not run again as it
    is made in a worker: a registry that they keep travels with what is in it.

    Args:
      kind: the class.
      reduced: what cloudpickle makes of it.
    """
    home = _home(kind)
    if home is not None:
        return sentinels.named, (home, kind.__qualname__)
    if getattr(reduced[0], "__name__", "") != "_make_skeleton_class":
        return reduced  # of an enum, say, which is complete
    make, (metaclass, name, bases, given, *others), *rest = reduced
    more = {"__qualname__": kind.__qualname__}
    # A typed named tuple makes its own, and allows no others.
    if "__slots__" in vars(kind) and typing.NamedTuple not in bases:
        more["__slots__"] = vars(kind)["__slots__"]
    arguments = metaclass, name, bases, {**given, **more}, *others
    told = tuple(
        base for base in kind.__mro__[1:] if "__init_subclass__" in vars(base) and _travels(base)
    )
    if not told and not _travels(metaclass):
        return make, arguments, *rest
    known = next(base for base in metaclass.__mro__ if not _travels(base))
    return _made, (told, known, make, *arguments), *rest


def _home(kind: type) -> str | None:
    """Returns the library that has a class which names another, as `pytest.skip.Exception`."""
    if kind.__module__ not in sys.modules or kind.__module__ in ("__main__", "__mp_main__"):
        return None
    code = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
    for name in dict.fromkeys(one.__module__ for one in (*code, *kind.__mro__[1:])):
        if name == kind.__module__ or reach.is_users(name):
            continue
        if getattr(sys.modules.get(name), kind.__qualname__, None) is kind:
            return name
    return None


def _travels(kind: type) -> bool:
    return not cloudpickle.cloudpickle._should_pickle_by_reference(kind)


def _made(told: Iterable[type], known: Any, make: Any, metaclass: type, *arguments: Any) -> type:
    """Makes a class without a word to those that travel along."""
    constructor: Any = (
        metaclass if known is metaclass else functools.partial(_new, known, metaclass)
    )
    with contextlib.ExitStack() as undo:
        for base in told:
            if "__init_subclass__" in vars(base):  # it may be about to be filled
                own = vars(base)["__init_subclass__"]
                undo.callback(type.__setattr__, base, "__init_subclass__", own)
                silent = classmethod(functools.partial(_next, base))
                type.__setattr__(base, "__init_subclass__", silent)
        made: type = make(constructor, *arguments)
        return made


def _new(known: Any, metaclass: type, *arguments: Any) -> Any:
    return known.__new__(metaclass, *arguments)


def _next(base: Any, kind: type) -> None:
    super(base, kind).__init_subclass__()


def families(code: Iterable[types.FunctionType], kinds: Iterable[Any]) -> Families:
    """Returns the subclasses, in their order, of classes that travel, if code asks for them."""
    if not any("__subclasses__" in mentions(one.__code__).names for one in code):
        return []
    found: Families = []
    todo = [kind for kind in kinds if isinstance(kind, type)]
    seen: set[type] = set()
    while todo:
        kind = todo.pop()
        if kind not in seen:
            seen.add(kind)
            found.append((kind, type.__subclasses__(kind)))
            todo += found[-1][1]
    return found


def arrange(given: Families) -> None:
    """Brings the subclasses of classes that have arrived into their order."""
    _arranged.append(given)
    for _, kinds in given:
        for kind in kinds:
            # It goes behind the others.
            type.__setattr__(kind, "__bases__", kind.__bases__)
