"""Reads of a source at positions: where the source draws, each is seeded by its position."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from grain_jax._algebra import held, stacking
from grain_jax._algebra.access import READING, Keys, Source, mark_failure
from grain_jax._algebra.guard import DREW
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
    if not source.guard.may_draw:
        return held.separated(together(keys))

    def one(row: int) -> Any:
        key = int(keys[row])
        progress.at(READING, lambda: f"key {key}")
        try:
            return source.get(key)
        except BaseException as error:
            mark_failure(error, source, row, keys.tolist())
            raise

    source.check(keys)
    return held.separated(source.guard.read(lambda: together(keys), one, positions, seed))


def read_batch(source: Source, keys: Keys, seed: int, allocate: stacking.Allocate | None) -> Any:
    """Returns what the source stacks of keys; None if it cannot, or draws."""
    found = [source.guard.run(lambda: source.read_batch(keys, allocate), seed)]
    if found[0] is DREW:
        return None
    return found[0] if source.is_known else held.separated(found)[0]
