"""Nodes: what a random-access dataset is made of, as data.

A node says how many elements there are and reads the elements at many indices at once. Nodes that
only reorder share one class around an index map; nodes that only change elements share one class
around a step. Indices beyond the length stand in later epochs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from grain_jax._algebra import (
    access,
    global_random,
    guard,
    index_maps,
    refills,
    seeded,
    stacking,
    steps,
)
from grain_jax._algebra.blocks import Block, one_by_one
from grain_jax._values import errors, faults

__all__ = [
    "BatchNode",
    "CustomNode",
    "Draws",
    "FlatMapNode",
    "IndexNode",
    "Indices",
    "Node",
    "SourceNode",
    "StepNode",
    "check_not_empty",
    "element",
    "read_batch",
    "whence",
]

Indices = np.ndarray[Any, np.dtype[np.int64]]


def element(node: Node, index: int, seed: int = 0) -> Any:
    """Returns one element; None if it is absent."""
    try:
        block = node.read(np.array([index], np.int64), seeded.Direct(seed))
    except BaseException as error:
        faults.reraise(error, access.READING, _describe(node)(index))
    return block.data[0] if block.data else None


def read_batch(
    node: Node, indices: Indices, allocate: stacking.Allocate | None, seed: int
) -> Any | None:
    """Returns the elements at `indices` as one batch that the source stacks, or None.

    Only where nothing but index maps stands between, and the source can.
    """
    while isinstance(node, IndexNode):
        check_not_empty(node.length, indices)
        indices, node = node.index_map(indices), node.parent
    if not isinstance(node, SourceNode) or not node.source.has_batches:
        return None
    check_not_empty(node.length, indices)
    return seeded.read_batch(node.source, indices % node.length, seed, allocate)


class Node(Protocol):
    """Random access to elements."""

    @property
    def length(self) -> int:
        """How many elements one epoch has."""

    @property
    def has_gaps(self) -> bool:
        """Whether a step may make elements absent."""

    def key(self, index: int) -> int | None:
        """Returns the record key that an index ends at; None where there is no single one."""

    def read(self, indices: Indices, read: seeded.Read) -> Block:
        """Returns the elements at `indices` (int64, shape (n,)), without the absent ones."""


def _present(data: list[Any], indices: Indices) -> Block:
    """Returns the block of those elements that are not None."""
    block = Block(data, indices.tolist())
    for element in data:
        if element is None:
            return block.take([row for row, e in enumerate(data) if e is not None])
    return block


@dataclasses.dataclass(frozen=True, slots=True)
class Draws:
    """How the process-wide generators are seeded for every element that a step works on.

    Attributes:
      seed: the dataset's.
      number: which of its steps this is.
    """

    seed: int
    number: int

    @classmethod
    def of(cls, step: steps.Step, seed: int, number: int) -> Draws | None:
        """Returns how they are seeded for a step; None if it does not draw from them."""
        if step.function is None or not global_random.may_draw(step.function):
            return None
        return cls(seed, number)

    def start(self, index: int) -> None:
        """Seeds for the element at an index."""
        # Above the numbers of stages, which seed for the same positions.
        global_random.seed_for(self.seed, index, 0, (1 << 32) + self.number)


def _run(step: steps.Step, block: Block, draws: Draws | None, node: Node) -> Block:
    """Runs a step, on one element at a time if it may draw: it has to give the same by itself."""
    block.describe = _describe(node)
    if draws is None or not len(block):
        return step(block)
    with global_random.preserved():
        return one_by_one(block, step, lambda index, _: draws.start(index))


def _describe(node: Node) -> Callable[[int], str]:
    """Returns what says in words which record stands at an index."""

    def describe(index: int) -> str:
        record = whence(node, index)
        return f"index {index}" + ("" if record is None else f" ({record})")

    return describe


def whence(node: Node, index: int) -> str | None:
    """Says in words which record an index ends at; None where there is no single one."""
    while isinstance(node, (IndexNode, StepNode)):
        if isinstance(node, IndexNode):
            index = int(node.index_map(np.array([index], np.int64))[0])
        node = node.parent
    if hasattr(node, "whence"):
        found: str | None = node.whence(index)
        return found
    key = node.key(index)
    if key is None:
        return None
    return node.source.whence(key) if isinstance(node, SourceNode) else f"record key {key}"


def check_not_empty(length: int, indices: Indices) -> None:
    """Refuses to read what has no elements at all."""
    if not length and len(indices):
        raise errors.OutOfRangeError(f"index {int(indices[0])} of an empty dataset")


@dataclasses.dataclass(frozen=True)
class SourceNode:
    """The records of a source."""

    source: access.Source

    @property
    def has_gaps(self) -> bool:
        """Whether the source is known to have a record None."""
        return self.source.has_gaps

    @property
    def length(self) -> int:
        """How many records there are."""
        return self.source.length

    def key(self, index: int) -> int | None:
        """Returns the index within the epoch."""
        return index % self.length

    def read(self, indices: Indices, read: seeded.Read) -> Block:
        """Reads from the source; None is absent."""
        check_not_empty(self.length, indices)
        keys = indices
        if len(indices) and (indices.min() < 0 or indices.max() >= self.length):
            keys = indices % self.length
        return _present(read(self.source, keys, indices), indices)


@dataclasses.dataclass(frozen=True)
class CustomNode:
    """A user's own subclass of `MapDataset`.

    Attributes:
      dataset: the user's object.
      has_gaps: never known, so no.
      closed: after how many epochs its elements come again; None leaves that to the user's class.
    """

    dataset: Any
    has_gaps: bool = False
    closed: int | None = None
    guard: guard.Guard = dataclasses.field(repr=False, compare=False, default_factory=guard.Guard)
    refills: refills.Refills = dataclasses.field(
        repr=False, compare=False, default_factory=refills.Refills
    )

    @property
    def length(self) -> int:
        """What the user's `__len__` says."""
        return len(self.dataset)

    def key(self, index: int) -> int | None:
        """Nobody knows."""
        return None

    def read(self, indices: Indices, read: seeded.Read) -> Block:
        """Asks the user's `__getitem__`."""
        wanted = indices.tolist()
        if self.closed is not None:
            wanted = [index % (self.closed * self.length) for index in wanted]

        def one(row: int) -> Any:
            try:
                element = self.dataset[wanted[row]]
            except BaseException as error:
                step = f"{type(self.dataset).__name__}.__getitem__"
                faults.reraise(error, step, f"index {wanted[row]}")
            if not self.refills.seen:
                return element
            return refills.copied(element, type(self.dataset).__name__, wanted[row])

        def read_all() -> list[Any]:
            rows = range(len(wanted))
            found: list[Any] = self.guard.read(
                lambda: list(map(one, rows)), one, indices, read.seed
            )
            return found

        self.guard.part = guard.DATASET + _generation(self.dataset)
        again = self.dataset.__getitem__
        data = self.refills.settled(
            read_all, lambda block: self.refills.look(block, wanted, self.length, again)
        )
        return _present(data, indices)


def _generation(dataset: Any) -> int:
    """Returns how many datasets one is made over, which may draw at the same indices."""
    return max((_generation(parent) + 1 for parent in dataset.parents), default=0)


@dataclasses.dataclass(frozen=True)
class IndexNode:
    """The elements of the parent in another order."""

    parent: Node
    index_map: index_maps.IndexMap

    @property
    def length(self) -> int:
        """What the index map says."""
        return self.index_map.length

    @property
    def has_gaps(self) -> bool:
        """What the parent says."""
        return self.parent.has_gaps

    def key(self, index: int) -> int | None:
        """Follows the index map."""
        return self.parent.key(int(self.index_map(np.array([index], np.int64))[0]))

    def read(self, indices: Indices, read: seeded.Read) -> Block:
        """Reads the parent at other indices."""
        check_not_empty(self.length, indices)
        block = self.parent.read(self.index_map(indices), read)
        block.positions = (indices if block.rows is None else indices[block.rows]).tolist()
        return block


@dataclasses.dataclass(frozen=True)
class StepNode:
    """Every element changed by a step, or made absent by a filter."""

    parent: Node
    step: steps.Step
    draws: Draws | None = None

    @property
    def length(self) -> int:
        """What the parent says."""
        return self.parent.length

    @property
    def has_gaps(self) -> bool:
        """Whether this or an earlier step filters."""
        return self.step.counts != "same" or self.parent.has_gaps

    def key(self, index: int) -> int | None:
        """What the parent says."""
        return self.parent.key(index)

    def read(self, indices: Indices, read: seeded.Read) -> Block:
        """Runs the step on the parent's elements."""
        return _run(self.step, self.parent.read(indices, read), self.draws, self)


@dataclasses.dataclass(frozen=True)
class BatchNode:
    """Consecutive elements of an epoch, stacked."""

    parent: Node
    step: steps.BatchStep
    draws: Draws | None = None

    @property
    def length(self) -> int:
        """Number of batches."""
        whole, rest = divmod(self.parent.length, self.step.size)
        return whole + (rest > 0 and not self.step.drop)

    @property
    def has_gaps(self) -> bool:
        """Never: a batch needs all of its elements."""
        return False

    def key(self, index: int) -> int | None:
        """A batch has no single key."""
        return None

    def read(self, indices: Indices, read: seeded.Read) -> Block:
        """Reads all elements of all batches at once, then stacks."""
        check_not_empty(self.length, indices)
        size, below = self.step.size, self.parent.length
        epochs, within = np.divmod(indices, max(1, self.length))
        counts = np.minimum(size, below - within * size)
        begins = epochs * below + within * size
        wanted = np.concatenate(
            [np.arange(b, b + c, dtype=np.int64) for b, c in zip(begins, counts, strict=True)]
            or [np.zeros(0, np.int64)]
        )
        block = self.parent.read(wanted, read)
        if block.rows is not None:
            missing = sorted(set(range(len(wanted))) - set(block.rows))[0]
            raise errors.InvalidValueError(
                f"{self.step.title} needs every element, and the one at index {wanted[missing]} is "
                f"absent (None). Write `ds.to_iter_dataset().batch(...)`: a stream closes gaps."
            )
        block.describe = _describe(self.parent)
        return Block(self._batches(block, counts.tolist(), indices.tolist()), indices.tolist())

    def _batches(self, block: Block, counts: list[int], indices: list[int]) -> list[Any]:
        data: list[Any] = []
        end = 0
        with global_random.preserved() if self.draws else contextlib.nullcontext():
            for count, index in zip(counts, indices, strict=True):
                begin, end = end, end + count
                if self.draws:
                    self.draws.start(index)
                data += self.step(block.move(begin, end)).data
        return data


@dataclasses.dataclass(frozen=True)
class FlatMapNode:
    """Each element of the parent replaced by a fixed number of places for its outputs."""

    parent: Node
    step: steps.FlatMapStep
    fan_out: int
    draws: Draws | None = None
    has_gaps: bool = True

    @property
    def length(self) -> int:
        """Number of places."""
        if self.parent.length == index_maps.ENDLESS:
            return index_maps.ENDLESS
        return self.parent.length * self.fan_out

    def key(self, index: int) -> int | None:
        """Returns the key of the element that was split."""
        return self.parent.key(index // self.fan_out)

    def read(self, indices: Indices, read: seeded.Read) -> Block:
        """Splits each element of the parent once; empty places are absent."""
        wanted, places = np.divmod(indices, self.fan_out)
        below, first = np.unique(wanted, return_inverse=True)
        made = _run(self.step, self.parent.read(below, read), self.draws, self.parent)
        rows = range(len(made)) if made.rows is None else made.rows
        at = dict(zip(zip(rows, made.outputs or [], strict=True), made.data, strict=True))
        data = [at.get(place) for place in zip(first.tolist(), places.tolist(), strict=True)]
        return _present(data, indices)
