"""Reads of a source at positions: where the source draws, each is seeded by its position."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from grain_jax._algebra import held, stacking
from grain_jax._algebra.access import READING, Keys, Source, mark_failure
from grain_jax._algebra.guard import DREW
from grain_jax._algebra.refills import copied
from grain_jax._values import progress

__all__ = ["Direct", "Read", "read", "read_batch"]


class Read(Protocol):
    """How records are read: in this thread, or by a pool of threads.

    Attributes:
      seed: for reads that draw.
    """

    seed: int

    def __call__(self, source: Source, keys: Keys, positions: Keys) -> list[Any]:
        """Returns the records of keys, which stand at positions."""


@dataclasses.dataclass(slots=True)
class Direct:
    """Reads in the calling thread."""

    seed: int = 0

    def __call__(self, source: Source, keys: Keys, positions: Keys) -> list[Any]:
        """Reads the keys."""
        return read(source, keys, positions, self.seed, source.read)


def read(
    source: Source, keys: Keys, positions: Keys, seed: int, together: Callable[[Keys], list[Any]]
) -> list[Any]:
    """Returns the records of keys; what the source keeps of them itself is copied.

    Args:
        source: what is read.
        keys: of its records.
        positions: for each key, where its record stands.
        seed: the pipeline's.
        together: reads a block of keys, by threads or in one call.
    """
    if source.is_known:
        return together(keys)
    source.check(keys)
    refills = source.refills

    def one(row: int) -> Any:
        key = int(keys[row])
        progress.at(READING, lambda: f"key {key}")
        try:
            record = source.get(key)
            return copied(record, source.description, key) if refills.seen else record
        except BaseException as error:
            mark_failure(error, source, row, keys.tolist())
            raise

    def block() -> list[Any]:
        return list(map(one, range(len(keys)))) if refills.seen else together(keys)

    def records() -> list[Any]:
        if not source.guard.may_draw:
            return block()
        found: list[Any] = source.guard.read(block, one, positions, seed)
        return found

    found = refills.settled(records, lambda block: _refilled(source, block, keys.tolist()))
    return held.separated(found)


def _refilled(source: Source, records: list[Any], keys: list[int]) -> bool:
    """Whether reading a block has changed records of it, or that of the next one would."""
    many = source.get_many
    if many is not None and source.refills.probe(
        "many", records, keys[0], source.length, lambda key: many([key])
    ):
        return True
    return source.refills.look(records, keys, source.length, source.get)


def read_batch(source: Source, keys: Keys, seed: int, allocate: stacking.Allocate | None) -> Any:
    """Returns what the source stacks of keys; None if it cannot, or is read record by record.

    That is so where it draws, and where it writes each batch into the memory of the one before.
    """
    if source.is_known:
        return source.read_batch(keys, allocate)
    if source.refills.seen:
        return None
    found = [source.guard.run(lambda: source.read_batch(keys, allocate), seed)]
    if found[0] is DREW:
        return None
    first = int(keys[0]) if len(keys) else 0

    def again(key: int) -> Any:
        return source.read_batch(np.array([key], np.int64), allocate)

    if source.refills.probe("batch", found, first, source.length, again):
        return None
    return held.separated(found)[0]
