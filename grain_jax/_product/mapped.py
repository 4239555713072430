"""Mapped: a function applied to each batch once it is on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from grain_jax._execution.producing import SKIP
from grain_jax._values import errors, faults

__all__ = ["Mapped", "compiled"]


class Mapped:
    """Places batches, and applies a function to each.

    Args:
      place: makes a `Placed` of a batch on the host, or `SKIP`.
      function: compiled.
    """

    def __init__(self, place: Callable[[Any], Any], function: Callable[[Any], Any]) -> None:
        self._place = place
        self._function = function

    def __call__(self, element: Any) -> Any:
        placed = self._place(element)
        if placed is SKIP:
            return placed
        return dataclasses.replace(placed, batch=self._function(placed.batch))


def compiled(function: Any) -> Callable[[Any], Any]:
    """Returns a function compiled, whose errors say what it was called with.

    Raises:
      InvalidTypeError: for what cannot be called.
    """
    if not callable(function):
        raise errors.InvalidTypeError(
            f"device_map takes a function of a batch on the devices, got {function!r}. Write "
            "device_map(lambda batch: ...)."
        )
    called = function if hasattr(function, "lower") else jax.jit(function)

    def apply(batch: Any) -> Any:
        try:
            return called(batch)
        except Exception as error:
            kinds = jax.tree_util.tree_map(_kind, batch)
            faults.add_note(error, f"device_map was called with a batch of {kinds}")
            raise

    return apply


def _kind(leaf: Any) -> str:
    if isinstance(leaf, jax.Array):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"{type(leaf).__name__} (on the host: drop it before the stage)"
