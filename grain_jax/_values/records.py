"""A record with its metadata, as samplers and legacy operations see it."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import numpy as np

__all__ = ["Record", "RecordMetadata"]

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """Which record to read next, and what is known of it on its way.

    Attributes:
      index: position in the sampler's order, from 0.
      record_key: position in the data source; None once the record is a mixture of several.
      rng: the generator that random steps use for this record, if the sampler gives one.

    Example:
      >>> RecordMetadata(index=7, record_key=3)
      RecordMetadata(index=7, record_key=3, rng=None)
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """Returns the same metadata without a record key."""
        return dataclasses.replace(self, record_key=None)

    def __str__(self) -> str:
        return f"RecordMetadata(index={self.index}, record_key={self.record_key}, rng={self.rng})"


@dataclasses.dataclass(slots=True)
class Record(Generic[T]):
    """Data together with its metadata.

    Example:
      >>> Record(RecordMetadata(index=7, record_key=3), data={"x": 1}).data
      {'x': 1}
    """

    metadata: RecordMetadata
    data: T
