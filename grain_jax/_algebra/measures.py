"""Measures: what a grouping has to know of elements, computed where these are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from grain_jax._algebra import running, traits
from grain_jax._algebra.blocks import Block
from grain_jax._algebra.groupings.base import Measure
from grain_jax._algebra.running import Made

__all__ = ["MeasureStep"]


@dataclasses.dataclass
class MeasureStep(traits.Traits):
    """Leaves elements as they are, and adds a column of their measures to the block.

    An element whose measure fails fails as it would in any step.
    """

    function: Measure
    title: str

    def __call__(self, block: Block, failures: running.Failures | None = None) -> Block:
        return running.run(self, block, failures)

    def begin(self) -> Made:
        """Returns room for the elements and their measures."""
        return Made([], measures=[])

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Calls the function."""
        data, measures = block.data, made.measures
        assert measures is not None
        for row in rows:
            measures.append(self.function(data[row]))
            made.data.append(data[row])

    def finish(self, block: Block, made: Made) -> Block:
        """Returns the block with one more column."""
        assert made.measures is not None
        block.data = made.data
        block.measures = [*(block.measures or ()), made.measures]
        return block
