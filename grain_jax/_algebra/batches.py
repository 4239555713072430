"""The step that makes batches: of elements that somebody else has counted out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra import running, stacking, traits
from grain_jax._algebra.blocks import Block
from grain_jax._values import faults, progress

__all__ = ["BatchStep"]


@dataclasses.dataclass
class BatchStep(traits.Traits):
    """Groups `size` consecutive elements; the last group of a block may be smaller.

    Attributes:
      size: elements per batch.
      drop: whether the end of the stream drops an incomplete batch (whoever cuts the stream obeys).
      function: makes a batch of a list of elements; None stacks.
      allocate: memory for stacked arrays; None means fresh memory.
    """

    size: int
    drop: bool
    function: Callable[[Sequence[Any]], Any] | None
    title: str
    allocate: stacking.Allocate | None = None

    counts = "groups"
    keeps_key = False

    @property
    def batching(self) -> traits.Batching:  # type: ignore[override]
        """How it makes batches."""
        return traits.Batching(self.size, self.drop, self.function is None)

    def placed(self, allocate: stacking.Allocate) -> BatchStep:
        """Returns the step, with `allocate` for the memory of what it stacks."""
        return dataclasses.replace(self, allocate=allocate)

    def __call__(self, block: Block, failures: running.Failures | None = None) -> Block:
        batches: list[Any] = []
        begin = 0
        ends = [min(begin + self.size, len(block)) for begin in range(0, len(block), self.size)]
        progress.at(self.title, block.span, len(block.data))
        try:
            for end in ends:
                if self.function is None:
                    batches.append(stacking.stack(block.data[begin:end], self.allocate))
                else:
                    batches.append(self.function(block.move(begin, end).data))
                    running.settle(batches, self.title, None)
                begin = end
        except stacking.StackError as error:
            places = [block.where(begin + row) for row in (error.first, error.second)]
            faults.reraise(error, self.title, " and ".join(dict.fromkeys(places)))
        except BaseException as error:
            first, last = block.where(begin), block.where(min(begin + self.size, len(block)) - 1)
            faults.reraise(error, self.title, f"the batch from {first} to {last}")
        rows = [end - 1 for end in ends]
        # A batch stands where its last record stands.
        return Block(
            batches,
            [block.positions[row] for row in rows],
            None if block.outputs is None else [block.outputs[row] for row in rows],
            None if block.rngs is None else [block.rngs[row] for row in rows],
            None,
            block.ordinal // self.size,
            block.describe,
            sieved=block.sieved,
        )
