"""Lists of Python objects as columns.

In the process that has the list, records are copied as they are read. On their way to workers they
are written into one memory, which all of them map, and which no edit of the list reaches.
"""

from __future__ import annotations

import functools
import operator
import pickle
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import copies
from grain_jax._algebra.columns import ArrayColumn, Column
from grain_jax._algebra.packing import Array, Keys, Packed, pickled_size
from grain_jax._algebra.stacking import Allocate

__all__ = ["ListColumn", "Texts"]

_DTYPES = {int: np.int64, float: np.float64, bool: np.bool_}
_SAMPLE = 16  # records that are looked at
_LARGE = 1 << 16  # bytes of a record, without its arrays
_STACKED_TO = 1 << 16  # bytes; larger arrays of one shape are not worth a look-up less


class ListColumn(Column):
    """The elements of a list that nobody else changes in length or order."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self.length = len(records)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (_packed(self._records),)

    @functools.cached_property
    def has_none(self) -> bool:  # type: ignore[override]
        """Whether an element is None."""
        return type(None) in set(map(type, self._records))

    def rows(self, keys: Keys) -> list[Any]:
        """Copies of the elements, or read-only views."""
        wanted = keys.tolist()
        if len(wanted) > 1:
            return copies.of_records(operator.itemgetter(*wanted)(self._records))
        return copies.of_records([self._records[key] for key in wanted])


def _itself(column: Column) -> Column:
    return column


def _packed(records: Sequence[Any]) -> Column:
    """The column with equal rows that is smallest where it is read by another process."""
    kinds = set(map(type, records))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in _DTYPES:
            try:
                return _Numbers(np.fromiter(records, _DTYPES[kind], len(records)))
            except OverflowError:  # beyond 64 bits
                pass
        elif kind is str or kind is bytes:
            return Texts.of(records, kind)
        elif kind is np.ndarray and _are_alike(records):
            first = records[0]
            rows = np.empty((len(records), *first.shape), first.dtype)
            return ArrayColumn(np.stack(records, out=rows))  # by itself it makes native bytes
    if _are_entangled(records):
        return _Whole(list(records))
    if len(set(map(id, records))) == len(records):
        return _Packed(Packed.of(records), None)
    numbers: dict[int, int] = {}
    order = [numbers.setdefault(id(record), len(numbers)) for record in records]
    different = list({id(record): record for record in records}.values())
    return _Packed(Packed.of(different), np.array(order, np.int64))


def _are_alike(records: Sequence[Array]) -> bool:
    """Whether arrays are small, and rows of one array would not differ from them."""
    first = records[0]
    return (
        0 < first.nbytes <= _STACKED_TO
        and not first.dtype.hasobject
        and all(
            record.shape == first.shape
            and (record.dtype is first.dtype or _are_one_type(record.dtype, first.dtype))
            and record.flags.c_contiguous
            for record in records
        )
        and first.ndim > 0
        and len(set(map(id, records))) == len(records)
    )


def _are_one_type(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether types are the same in all that they say; `==` leaves metadata and padding out."""
    is_plain = one.fields is None and one.metadata is None and other.metadata is None
    return is_plain and one == other


def _are_entangled(records: Sequence[Any]) -> bool:
    """Whether records refer to so much in common that one by one they would take a multiple."""
    sample = list(records[:: max(1, len(records) // _SAMPLE)])
    alone = sum(map(pickled_size, sample))
    if len(sample) < _SAMPLE or alone < len(sample) * _LARGE or pickled_size(sample) > alone / 2:
        return False
    warnings.warn(
        f"records of type {type(sample[0]).__qualname__} refer to objects that they have in "
        f"common. A copy of one, which every read makes, takes {alone // len(sample) >> 10} KiB "
        "with all that it refers to, and each worker holds the whole list. Let records hold an "
        "index or a name instead of the object.",
        stacklevel=2,
    )
    return True


class _Whole(ListColumn):
    """Records that travel together, as the one net of objects that they are."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._records,)


class _Numbers(Column):
    """Numbers of Python, all of one type, as an array."""

    def __init__(self, values: Array) -> None:
        self._values = values
        self.length = len(values)

    def rows(self, keys: Keys) -> list[Any]:
        """Numbers of Python again."""
        numbers: list[Any] = self._values[keys].tolist()
        return numbers


class Texts(Column):
    """Text or bytes, one behind the other in one memory.

    Args:
        memory: what holds them, text as UTF-8.
        ends: where each ends, behind where the first begins.
        encoded: whether it is text.
    """

    gathers = True

    def __init__(self, memory: Any, ends: Keys, encoded: bool) -> None:
        self._memory = memoryview(memory).cast("B").toreadonly()
        self._ends = ends
        self._encoded = encoded
        self.length = len(ends) - 1

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        memory: Any = pickle.PickleBuffer(self._memory) if protocol > 4 else bytes(self._memory)
        return type(self), (memory, self._ends, self._encoded)

    @classmethod
    def of(cls, records: Sequence[Any], kind: type) -> Texts:
        """Writes the texts down; lone surrogates stay what they are."""
        parts = (
            [text.encode("utf-8", "surrogatepass") for text in records] if kind is str else records
        )
        ends = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=ends[1:])
        return cls(b"".join(parts), ends, kind is str)

    def rows(self, keys: Keys) -> list[Any]:
        """The texts of these keys."""
        memory = self._memory
        spans = zip(self._ends[keys].tolist(), self._ends[keys + 1].tolist(), strict=True)
        if self._encoded:
            return [str(memory[begin:end], "utf-8", "surrogatepass") for begin, end in spans]
        return [bytes(memory[begin:end]) for begin, end in spans]

    def gather(self, keys: Keys, allocate: Allocate | None) -> Array:
        """The texts as objects, as they stack."""
        out = np.empty(len(keys), object)
        out[:] = self.rows(keys)
        return out


class _Packed(Column):
    """Any objects, each pickled by itself; those that are the same object are stored once."""

    def __init__(self, records: Packed, order: Keys | None) -> None:
        self._stored = records
        self._order = order
        self.length = len(records) if order is None else len(order)

    def rows(self, keys: Keys) -> list[Any]:
        """A copy for each key."""
        return self._stored.rows(keys if self._order is None else self._order[keys])
