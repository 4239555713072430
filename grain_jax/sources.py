"""Data sources: records by index."""

from grain_jax._algebra.array_records import ArrayRecordDataSource
from grain_jax._algebra.per_process import PerProcess
from grain_jax._algebra.shared_memory import SharedMemoryDataSource
from grain_jax._algebra.sources import RandomAccessDataSource, RangeDataSource

__all__ = [
    "ArrayRecordDataSource",
    "PerProcess",
    "RandomAccessDataSource",
    "RangeDataSource",
    "SharedMemoryDataSource",
]
