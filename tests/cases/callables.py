"""Callables of several kinds, in a module that a worker imports in no time."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["Adds", "cached", "plus"]


def plus(amount: int, element: Any) -> Any:
    return element + amount


@functools.lru_cache(maxsize=1)
def cached(element: Any) -> Any:
    return element + 1


class Adds:
    """Has a method that adds, and can be called itself."""

    def add(self, element: Any) -> Any:
        return element + 1

    def __call__(self, element: Any) -> Any:
        return self.add(element)
