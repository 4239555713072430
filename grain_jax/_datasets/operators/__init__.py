"""Operators on streams: each is a grouping and the dataset that it makes, in a file of its own."""

from __future__ import annotations

from typing import Any

from grain_jax import _lazy

__all__ = ["made"]


def made(name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns what a class of an operator makes, for methods of what that is derived from.

    Args:
      name: `module:class` in this package.
      *args: for the class.
      **kwargs: for the class, too.
    """
    return _lazy.fetch(f"{__name__}.{name}")(*args, **kwargs)
