"""Sentinels: objects that carry nothing but their identity, such as `MISSING = object()`.

A copy of one is another one, for which `is MISSING` is false. What a variable of a module refers to
is found there again by its name, in a worker process, too.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from grain_jax._algebra import reach

__all__ = ["is_sentinel", "named", "reduce"]


def is_sentinel(obj: Any) -> bool:
    """Whether an object is only told by its identity: an `object()`, or a variable without a state.

    Without a variable that holds it, an object that has no attributes may be about to get some.
    """
    return type(obj) is object or (_is_bare(obj) and _in(type(obj).__module__, obj) is not None)


def reduce(obj: Any) -> tuple[Any, tuple[str, str]] | None:
    """Returns how a sentinel of a module is pickled, by its name; None for anything else."""
    if type(obj) is object:
        names = sorted(sys.modules, key=lambda name: not reach.is_users(name))
    elif _is_bare(obj):
        names = [type(obj).__module__]
    else:
        return None
    for name in names:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if name != "__main__" and spec is not None and (found := _in(name, obj)) is not None:
            return named, (name, found)
    return None


def named(module: str, name: str) -> Any:
    """Returns what a variable of a module refers to."""
    return getattr(importlib.import_module(module), name)


def _is_bare(obj: Any) -> bool:
    """Whether its class compares by identity, and it has no attributes and no other content."""
    kind: Any = type(obj)
    return (
        kind.__eq__ is object.__eq__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__itemsize__ == 0
        and kind.__basicsize__ <= object.__basicsize__ + 16  # a `__dict__`, weak references
        and not isinstance(obj, type)
        and getattr(obj, "__dict__", None) == {}
    )


def _in(module: str, obj: Any) -> str | None:
    """Returns the variable of a module that refers to an object."""
    variables = getattr(sys.modules.get(module), "__dict__", {})
    return next((name for name, value in [*variables.items()] if value is obj), None)
