"""Traits: what a step says of itself, so that nobody has to ask of which class it is."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

from grain_jax._algebra import running, stacking

__all__ = ["Batching", "Traits"]


class Batching(NamedTuple):
    """How a step makes batches of elements that somebody else has counted out.

    Attributes:
      size: elements of a batch.
      drop: whether an incomplete batch at the end of the stream is dropped.
      stacks: whether the library stacks them, and no function of the user's.
    """

    size: int
    drop: bool
    stacks: bool


class Traits:
    """What most steps are: each derives from this, and says where it differs.

    Attributes:
      counts: how many outputs there are.
      is_random: whether it draws from generators of ours, so that later ones have another number.
      needs_ordinal: whether it has to know how many elements of the stream come before.
      keeps_key: whether a record keeps its key; behind what makes several of one it cannot.
      batching: how it makes batches; None if it makes none.
    """

    counts: ClassVar[running.Counts] = "same"
    is_random: ClassVar[bool] = False
    needs_ordinal: bool = False
    keeps_key: bool = True
    batching: Batching | None = None

    def placed(self, allocate: stacking.Allocate) -> Self:
        """Returns the step, with `allocate` for the memory of what it stacks."""
        return self
