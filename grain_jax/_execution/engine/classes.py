"""Classes that travel by value: what cloudpickle leaves out of them."""

from __future__ import annotations

import typing
from typing import Any

__all__ = ["completed"]


def completed(kind: type, reduced: Any) -> Any:
    """Adds the full name and the slots of a class, which are given as it is made.

    Args:
      kind: the class.
      reduced: what cloudpickle makes of it.
    """
    if getattr(reduced[0], "__name__", "") != "_make_skeleton_class":
        return reduced  # of an enum, say, which is complete
    make, (metaclass, name, bases, given, *others), *rest = reduced
    more = {"__qualname__": kind.__qualname__}
    # A typed named tuple makes its own, and allows no others.
    if "__slots__" in vars(kind) and typing.NamedTuple not in bases:
        more["__slots__"] = vars(kind)["__slots__"]
    return make, (metaclass, name, bases, {**given, **more}, *others), *rest
