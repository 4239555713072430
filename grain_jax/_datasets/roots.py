"""Roots: where the elements of a stream come from, at given positions."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

from grain_jax._algebra import access, index_maps, reading, seeded, stacking, threads
from grain_jax._algebra.blocks import Block
from grain_jax._datasets import lineage, nodes
from grain_jax._datasets.schedule import Span
from grain_jax._values import clock, faults, options

__all__ = ["NodeRoot"]


class NodeRoot:
    """The elements of a random-access node, in order.

    Attributes:
      threads: that read; those of another root may be put here, with which it is closed.

    Args:
      node: what is read.
      read_options: how records are read.
      allow_nones: whether absent elements come as None.
      seed: for reads that draw from the process-wide generators.
      by_position: whether these depend on the position in the stream; otherwise on the index in the
        source, so that an element is the same wherever it stands.
    """

    def __init__(
        self,
        node: nodes.Node,
        read_options: options.ReadOptions | None = None,
        allow_nones: bool = False,
        *,
        seed: int = 0,
        by_position: bool = False,
    ) -> None:
        self._node = node
        self._seed = seed
        self._by_position = by_position
        self._options = read_options or options.ReadOptions()
        self._allow_nones = allow_nones
        self._readers: dict[int, reading.Reader] = {}
        self.threads = threads.Threads()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    @property
    def length(self) -> int | None:
        """Number of positions; None if endless."""
        length = self._node.length
        return None if length == index_maps.ENDLESS else length

    @property
    def epoch(self) -> int:
        """After how many positions the records come again."""
        return lineage.epoch(self._node)

    @property
    def batched(self) -> bool:
        """Whether an element is made of several records."""
        return lineage.batched(self._node)

    @property
    def drops(self) -> list[str]:
        """What may leave positions without an element, but for records that are None."""
        return lineage.dropping(self._node)

    @property
    def has_gaps(self) -> bool:
        """Whether some positions may have no element."""
        return self._node.has_gaps and not self._allow_nones

    @property
    def stacks(self) -> bool:
        """Whether only index maps stand before a source that stacks."""
        return lineage.stacks(self._node)

    @property
    def stacks_by_user(self) -> bool:
        """Whether it would be the user's code that stacks there."""
        return lineage.stacks_by_user(self._node)

    @property
    def is_fresh(self) -> bool:
        """Whether each element is a batch that the library has just stacked."""
        return lineage.is_fresh(self._node)

    @property
    def reads_at_once(self) -> bool:
        """Whether a source answers for many records in one call."""
        return lineage.reads_at_once(self._node)

    @property
    def read_options(self) -> options.ReadOptions:
        """How the user wants records to be read: by no other thread where that may draw."""
        if self.draws:
            return options.ReadOptions(num_threads=0)
        return self._options

    @property
    def is_threaded(self) -> bool:
        """Whether threads of this process read already."""
        return any(reader.is_threaded for reader in self._readers.values())

    def read_by(self, threads: int) -> NodeRoot:
        """Returns the same root, which so many threads read if nobody has said how many do."""
        if self._options.num_threads is not None:
            return self
        found = copy.copy(self)
        found._options = dataclasses.replace(self._options, num_threads=threads)
        found._readers = {}
        return found

    @property
    def draws(self) -> str:
        """What may draw from the process-wide generators as elements are read; empty if nothing."""
        return lineage.drawing(self._node)

    def functions(self) -> list[Callable[..., Any]]:
        """Returns the functions of the user's that read."""
        return list(lineage.functions(self._node))

    @property
    def asks(self) -> str:
        """Nothing: the order is arithmetic."""
        return ""

    @property
    def node(self) -> nodes.Node:
        """What is read."""
        return self._node

    def prepare(self, span: Span) -> Span:
        """Returns the span itself: a node needs positions only."""
        return span

    def read(self, payload: Span) -> Block:
        """Returns the elements at the positions."""
        positions = payload.positions()
        try:
            block = self._node.read(positions, self._reading(positions))
        except BaseException as error:
            self._reraise(error, positions, self.describe)
        block.ordinal, block.describe = payload.ordinal, self.describe
        if self._allow_nones and block.rows is not None:
            block = _with_nones(block, payload)
        return block

    def read_batch(
        self, payload: Span, allocate: stacking.Allocate | None
    ) -> tuple[Any, Block] | None:
        """Returns the elements stacked by the source, if it can."""
        positions = payload.positions()
        try:
            found = nodes.read_batch(self._node, positions, allocate, self._seed)
        except BaseException as error:
            self._reraise(error, positions, self.describe)
        if found is None:
            return None
        block = Block([], positions.tolist(), ordinal=payload.ordinal, describe=self.describe)
        return found, block

    @property
    def closes(self) -> bool:
        """Whether the source says how it is closed."""
        return any(source.closes for source in lineage.sources(self._node))

    def close_source(self) -> None:
        """Closes the source, which in a worker is a copy of the user's."""
        for source in lineage.sources(self._node):
            source.close()

    def close(self) -> None:
        """Stops the threads that read."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()

    def _reading(self, positions: nodes.Indices) -> _Reading:
        return _Reading(self, self._seed, positions if self._by_position else None)

    def reader(self, source: access.Source) -> reading.Reader:
        """Returns what reads blocks of a source."""
        reader = self._readers.get(id(source))
        if reader is None:
            reader = self._readers[id(source)] = reading.Reader(source, self._options, self.threads)
        return reader

    def key(self, payload: Any, position: int) -> int | None:
        """Returns the key of the record at a position."""
        return self._node.key(position)

    def describe(self, position: int) -> str:
        """Says in words which record stands at a position."""
        record = nodes.whence(self._node, position)
        return f"position {position}" + ("" if record is None else f" ({record})")

    def _reraise(
        self, error: BaseException, positions: nodes.Indices, describe: Callable[[int], str]
    ) -> NoReturn:
        """Raises what the source raised, with a note that says at which position, if known."""
        row = access.failed_row(error) if lineage.is_plain(self._node) else None
        if len(positions) == 1:
            row = 0
        if row is None or row >= len(positions):
            row, where = None, f"positions {positions[0]} to {positions[-1]}"
        else:
            where = describe(int(positions[row]))
        access.mark_row(error, row)
        try:
            faults.reraise(error, access.READING, where)
        finally:
            del error  # the traceback holds this frame


class _Reading:
    """Reads for one span of positions."""

    def __init__(self, root: NodeRoot, seed: int, positions: nodes.Indices | None) -> None:
        self.seed = seed
        self._root = root
        self._positions = positions

    def __call__(
        self, source: access.Source, keys: nodes.Indices, positions: nodes.Indices
    ) -> list[Any]:
        if self._positions is not None:
            positions = self._positions
        records = seeded.read(source, keys, positions, self.seed, self._root.reader(source).read)
        if (running := clock.here.clock) is not None and running.weighs:
            running.weigh(access.READING, records, len(records))
        return records


def _with_nones(block: Block, payload: Span) -> Block:
    data: list[Any] = [None] * payload.count
    for row, element in zip(block.rows or (), block.data, strict=True):
        data[row] = element
    positions = payload.positions().tolist()
    return Block(data, positions, ordinal=payload.ordinal, describe=block.describe)
