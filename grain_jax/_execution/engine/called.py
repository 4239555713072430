"""Which of the functions that a pipeline knows it calls, as far as names tell."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable

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
    waiting = list(functions)
    found = [one for one in waiting if id(one) in hooks]
    waiting = [one for one in waiting if id(one) not in hooks]
    names = named.union(method for _, _, method in kinds.METHODS)
    names.update(*map(reach.names_in, found))
    while True:
        adds = not _ADDING.isdisjoint(names) or any(map(_assigns_entries, found))
        now = [one for one in waiting if _is_called(one, names, adds)]
        if not now:
            return found
        found += now
        waiting = [one for one in waiting if not _is_called(one, names, adds)]
        names.update(*map(reach.names_in, now))


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
