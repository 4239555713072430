"""The step that makes one element of those of a group, which somebody else has chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from grain_jax._algebra import held, running, traits
from grain_jax._algebra.blocks import Block
from grain_jax._values import faults, progress

__all__ = ["GroupStep"]


@dataclasses.dataclass
class GroupStep(traits.Traits):
    """Makes an element of a whole block.

    Attributes:
      make: called with the elements, and with what the grouping laid out for them.
      title: what error messages call the step.
      function: the user's function, if `make` calls one.
      is_fresh: whether nobody but the caller has a hold on what `make` returns.
    """

    make: Callable[[list[Any], Any], Any]
    title: str
    function: Callable[..., Any] | None = None
    is_fresh: bool = False

    counts = "groups"
    keeps_key = False

    def __call__(self, block: Block, failures: running.Failures | None = None) -> Block:
        progress.at(self.title, block.span, len(block.data))
        last = len(block) - 1
        try:
            made = [self.make(block.data, block.layout)]
        except BaseException as error:
            first, end = block.where(0), block.where(last)
            where = first if first == end else f"the group from {first} to {end}"
            faults.reraise(error, self.title, where)
        if not self.is_fresh:
            held.detach(made, 0)
        found = block.part(last, last + 1)
        # It stands where its last element stands.
        found.data, found.rows, found.measures, found.ordinal = made, None, None, block.ordinal
        return found
