"""Which of the functions that a pipeline knows it calls, as far as names tell."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable

from grain_jax._algebra import kinds, reach
from grain_jax._algebra.mentions import nested

__all__ = ["reached"]

# Methods of mappings that may call `__setitem__` or `__delitem__`; and what does so by itself.
_ADDING = frozenset("update setdefault pop popitem clear setattr setitem delitem".split())  # noqa: SIM905
_ENTRIES = frozenset(dis.opmap[name] for name in ("STORE_SUBSCR", "DELETE_SUBSCR"))


def reached(
    functions: Iterable[types.FunctionType], hooks: set[int], named: set[str]
) -> list[types.FunctionType]:
    """Returns the functions that the pipeline calls, as far as names tell.

    A class is known with all of its methods. One that is never named is the script's to call: what
    it changes, the script has changed.
    """
    names = named.union(method for _, _, method in kinds.METHODS)
    found, waiting = _parted(functions, lambda one: id(one) in hooks)
    now, adds = list(found), False
    while True:
        names.update(*map(reach.names_in, now))
        adds = adds or not _ADDING.isdisjoint(names) or any(map(_assigns_entries, now))
        is_called = functools.partial(_is_called, names=names, adds=adds)
        now, waiting = _parted(waiting, is_called)
        if not now:
            return found
        found += now


def _parted(
    functions: Iterable[types.FunctionType], is_one: Callable[[types.FunctionType], bool]
) -> tuple[list[types.FunctionType], list[types.FunctionType]]:
    """Returns those that are, and those that are not; each is asked about once."""
    parts: tuple[list[types.FunctionType], list[types.FunctionType]] = ([], [])
    for function in functions:
        parts[not is_one(function)].append(function)
    return parts


def _assigns_entries(function: types.FunctionType) -> bool:
    """Whether code assigns or deletes entries of what it has, by methods of the user's maybe."""
    codes = nested(function.__code__)
    return any(not _ENTRIES.isdisjoint(code.co_code[::2]) for code in codes)


def _is_called(function: types.FunctionType, names: set[str], adds: bool) -> bool:
    name, path = function.__name__, function.__qualname__.split(".")
    is_method = len(path) > 1 and path[-2] != "<locals>"
    is_special = name[:2] == name[-2:] == "__" and name not in reach.SAVING
    if name in ("__setitem__", "__delitem__") and not adds and name not in names:
        return False
    return not is_method or name in names or is_special
