"""Packs as an operation: batches of rows of a fixed number, of the ordered stream of records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from grain_jax._algebra import pieces
from grain_jax._values import errors, options
from grain_jax._values.records import Record, RecordMetadata
from grain_jax._values.trees import flatten, paths, unflatten

__all__ = ["PackAndBatchOperation"]


@dataclasses.dataclass
class PackAndBatchOperation:
    """Packs sequences into the rows of batches: each into the first row that has room for it.

    When a record fits into no row, the batch goes out, and the record is the first of the next one.
    An element is a tuple of three trees that have the structure of `length_struct`: the data, of
    shape (batch_size, length, ...), padded with zeros; and two of int32 and shape (batch_size,
    length): which sequence of its row each token is of, from 1 on, and its place in that, from 0.

    As any operation it runs in the trainer's process, and a restored loader runs it again from the
    start. `FirstFitPackIterDataset` runs in workers and goes on at once.

    Args:
      length_struct: a tree like a record's, with the length of each leaf.
      batch_size: rows of a batch.
      max_sequences_per_bin: records of a row at most; None for any number.

    Raises:
      InvalidValueError: if a number is below 1; and as records come, for a sequence that is longer
        than its leaf, or a record of another structure.

    Example:
      >>> import numpy as np
      >>> import grain_jax as grain
      >>> rows = [np.array([1, 2]), np.array([3]), np.array([4, 5, 6])]
      >>> pack = PackAndBatchOperation(length_struct=3, batch_size=2)
      >>> loader = grain.DataLoader(
      ...     data_source=rows, sampler=grain.samplers.SequentialSampler(3), operations=[pack]
      ... )
      >>> [batch[0].tolist() for batch in loader]
      [[[1, 2, 3], [4, 5, 6]]]
    """

    length_struct: Any
    batch_size: int
    max_sequences_per_bin: int | None = None

    def __post_init__(self) -> None:
        options.check_count("batch_size", self.batch_size, minimum=1)
        if self.max_sequences_per_bin is not None:
            options.check_count("max_sequences_per_bin", self.max_sequences_per_bin, minimum=1)
        ways = paths(self.length_struct)
        if not ways:
            raise errors.InvalidValueError("length_struct has no leaves.")
        for way, length in zip(ways, flatten(self.length_struct)[0], strict=True):
            options.check_count(f"length_struct{way}", length, minimum=1)

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        """Yields records of batches."""
        packing = _Batch(self)
        for record in input_iterator:
            arrays = self._arrays(record)
            if not packing.add(record.metadata, arrays):
                yield packing.made()
                packing = _Batch(self)
                packing.add(record.metadata, arrays)
        if packing.metadata is not None:
            yield packing.made()

    def _arrays(self, record: Record[Any]) -> list[np.ndarray[Any, Any]]:
        leaves, structure = flatten(record.data)
        lengths, wanted = flatten(self.length_struct)
        where = f"at position {record.metadata.index}"
        if structure != wanted:
            raise errors.InvalidValueError(
                f"a record has the structure {structure!r}, and length_struct has {wanted!r} "
                f"({where}). Give it a length for each leaf, or bring the records into its form."
            )
        found = []
        for leaf, length, way in zip(leaves, lengths, paths(record.data), strict=True):
            name = _named(way)
            array = pieces.as_array(leaf, name)
            if not array.ndim or len(array) > length:
                what = f"has length {len(array)}" if array.ndim else "is a number, and no sequence"
                raise errors.InvalidValueError(
                    f"{name} {what}, and the rows have {length} ({where}). Cut it in a map "
                    "before, or give length_struct a larger number."
                )
            found.append(array)
        return found


class _Batch:
    """A batch that is being filled."""

    def __init__(self, of: PackAndBatchOperation) -> None:
        self._of = of
        self._lengths, self._structure = flatten(of.length_struct)
        self._ways = paths(of.length_struct)
        self._rooms = [list(self._lengths) for _ in range(of.batch_size)]
        self._counts = [0] * of.batch_size
        self._arrays: list[list[np.ndarray[Any, Any]]] = [[] for _ in self._lengths]
        self._places: list[list[int]] = [[] for _ in self._lengths]
        self._segments: list[int] = []
        self.metadata: RecordMetadata | None = None  # of the last record

    def add(self, metadata: RecordMetadata, arrays: list[np.ndarray[Any, Any]]) -> bool:
        """Puts a record into the first row that has room for it; whether there is one."""
        sizes = list(map(len, arrays))
        most = self._of.max_sequences_per_bin
        for row, rooms in enumerate(self._rooms):
            if self._counts[row] == most or any(map(int.__gt__, sizes, rooms)):
                continue
            self._counts[row] += 1
            self._segments.append(self._counts[row])
            for leaf, (array, length) in enumerate(zip(arrays, self._lengths, strict=True)):
                self._arrays[leaf].append(array)
                self._places[leaf].append((row + 1) * length - rooms[leaf])
                rooms[leaf] -= len(array)
            self.metadata = metadata
            return True
        return False

    def made(self) -> Record[Any]:
        """Returns the batch."""
        trees: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        size = self._of.batch_size
        columns = zip(self._arrays, self._places, self._lengths, self._ways, strict=True)
        for arrays, places, length, way in columns:
            data = pieces.filled(arrays, places, size * length, _named(way))
            segments, positions = pieces.segments(arrays, places, self._segments, size * length)
            trees[0].append(data.reshape(size, length, *data.shape[1:]))
            trees[1].append(segments.reshape(size, length))
            trees[2].append(positions.reshape(size, length))
        assert self.metadata is not None
        made = tuple(unflatten(self._structure, leaves) for leaves in trees)
        return Record(self.metadata.remove_record_key(), made)


def _named(way: str) -> str:
    return f"the leaf {way}" if way else "the record"
