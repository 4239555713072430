"""A block: some elements of a stream side by side, with where each of them came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Block", "Rest", "Sieved", "joined", "one_by_one"]


class Sieved(NamedTuple):
    """What a filter has left of some elements.

    Attributes:
      title: of the filter; empty for what leaves records absent as they are read.
      seen: how many elements it saw.
      units: for each of them the entry of the request that it answers; None where they are all.
      kept: which of them it kept; None for all.
    """

    title: str
    seen: int
    units: list[int] | None
    kept: list[int] | None


@dataclasses.dataclass(slots=True)
class Block:
    """Elements with their positions; the lists run in parallel.

    Attributes:
      data: the elements.
      positions: for each element the position of its (last) record, in the numbering of whoever
        made the block.
      outputs: for each element which output of a flat-map it is; None while all are 0.
      rngs: generators that a sampler gave; None if it gave none.
      rows: for each element which entry of the request it answers; None while all are there.
      ordinal: how many elements of the stream come before the first of this block.
      describe: says in words which record stands at a position, for errors.
      layout: what the step that makes an element of all of them needs besides.
      measures: columns of what groupings have to know of the elements.
      sieved: where filters note what they have left; shared with all blocks that are made of this
        one. None where nobody asks.
    """

    data: list[Any]
    positions: Sequence[int]
    outputs: list[int] | None = None
    rngs: list[np.random.Generator | None] | None = None
    rows: list[int] | None = None
    ordinal: int = 0
    describe: Callable[[int], str] | None = None
    layout: Any = None
    measures: list[list[Any]] | None = None
    sieved: list[Sieved] | None = None

    def __len__(self) -> int:
        return len(self.data)

    def where(self, row: int) -> str:
        """Says which record an element is made of; behind the last one, where Ctrl-C came, its."""
        row = min(row, len(self.positions) - 1)
        if row < 0:
            return "no record"
        position = int(self.positions[row])
        text = self.describe(position) if self.describe else f"position {position}"
        if self.outputs is not None and self.outputs[row]:
            text += f", output {self.outputs[row]} of a flat-map"
        return text

    def span(self) -> str:
        """Says which records the elements are made of."""
        if len(self.positions) < 2:
            return self.where(0)
        return f"positions {self.positions[0]} to {self.positions[-1]}"

    def take(self, keep: Sequence[int]) -> Block:
        """Returns the block with only the elements `keep`, which may repeat."""
        return Block(
            [self.data[i] for i in keep],
            [self.positions[i] for i in keep],
            None if self.outputs is None else [self.outputs[i] for i in keep],
            None if self.rngs is None else [self.rngs[i] for i in keep],
            list(keep) if self.rows is None else [self.rows[i] for i in keep],
            self.ordinal,
            self.describe,
            self.layout,
            self.measures and [[column[i] for i in keep] for column in self.measures],
            self.sieved,
        )

    def part(self, begin: int, end: int) -> Block:
        """Returns the elements `begin` to `end - 1`."""
        return Block(
            self.data[begin:end],
            self.positions[begin:end],
            None if self.outputs is None else self.outputs[begin:end],
            None if self.rngs is None else self.rngs[begin:end],
            None if self.rows is None else self.rows[begin:end],
            self.ordinal + begin,
            self.describe,
            self.layout,
            self.measures and [column[begin:end] for column in self.measures],
            self.sieved,
        )

    def move(self, begin: int, end: int) -> Block:
        """Returns the elements `begin` to `end - 1`, which are not kept here any more."""
        part = self.part(begin, end)
        self.data[begin:end] = [None] * len(part)
        return part


@dataclasses.dataclass(frozen=True, slots=True)
class Rest:
    """In place of the last batch of batches, where there are too few records to fill it.

    Attributes:
      batch: the records as one batch; None where nobody wants them.
      count: how many they are.
      sizes: of a full batch of batches, outermost first.
    """

    batch: Any
    count: int
    sizes: tuple[int, ...]


def joined(blocks: Sequence[Block]) -> Block:
    """Returns several blocks, which know their rows, as one; at least one."""
    first = blocks[0]
    outputs: list[int] | None = None
    if any(block.outputs is not None for block in blocks):
        outputs = [o for block in blocks for o in block.outputs or [0] * len(block)]
    rngs: list[np.random.Generator | None] | None = None
    if any(block.rngs is not None for block in blocks):
        rngs = [rng for block in blocks for rng in block.rngs or [None] * len(block)]
    measures: list[list[Any]] | None = None
    if any(block.measures is not None for block in blocks):
        columns = zip(*(block.measures or () for block in blocks if len(block)), strict=True)
        measures = [[value for column in parts for value in column] for parts in columns]
    return Block(
        [element for block in blocks for element in block.data],
        [position for block in blocks for position in block.positions],
        outputs,
        rngs,
        [row for block in blocks for row in block.rows or ()],
        first.ordinal,
        first.describe,
        None,
        measures,
        first.sieved,
    )


def one_by_one(
    block: Block,
    run: Callable[[Block], Block],
    start: Callable[[int, int], None],
    is_over: Callable[[], bool] = lambda: False,
) -> Block:
    """Returns what `run` makes of a block's elements, each by itself; at least one.

    Args:
      block: the elements, which are not kept in it.
      run: makes any number of elements of a block of one.
      start: called before each, with its position and its flat-map number.
      is_over: whether those behind are not asked for any more.
    """
    rows = list(range(len(block))) if block.rows is None else block.rows
    done: list[Block] = []
    for place, row in enumerate(rows):
        one = block.move(place, place + 1)
        one.rows = [row]
        start(int(one.positions[0]), one.outputs[0] if one.outputs else 0)
        done.append(run(one))
        if is_over():
            break
    result = joined(done)
    if block.rows is None and result.rows == rows:
        result.rows = None
    return result
