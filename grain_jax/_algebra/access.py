"""How the library reads a data source: a block of keys at a time, whatever the source offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra.stacking import Allocate
from grain_jax._values.errors import InvalidTypeError, InvalidValueError, OutOfRangeError
from grain_jax._values.trees import flatten

__all__ = ["Keys", "Source", "describe"]

Keys = np.ndarray[Any, np.dtype[np.int64]]


class Source:
    """A data source by protocol, and the base of those that the library knows better.

    Attributes:
        given: the user's object.
        length: its number of records, when it was adapted.
        in_memory: whether reading neither waits nor calls the user's code, so that threads cannot
            help.
        get: one record by a Python int.
        get_many: several records by a list of Python ints; None if the source cannot.
    """

    in_memory = False

    def __init__(self, given: Any, length: int | None = None) -> None:
        self.given = given
        self.length = len(given) if length is None else length
        self.get: Callable[[int], Any] = given.__getitem__
        self.get_many: Callable[[list[int]], Sequence[Any]] | None = None
        if callable(getattr(given, "__getitems__", None)):
            self.get_many = self._get_many
        self.in_memory = bool(getattr(type(given), "records_in_memory", False))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.given,)

    def __repr__(self) -> str:
        return self.description

    def __len__(self) -> int:
        return self.length

    @property
    def description(self) -> str:
        """The type and the length: nothing that depends on the records."""
        return f"{describe(self.given)} of length {self.length}"

    @property
    def has_batches(self) -> bool:
        """Whether `read_batch` can be expected to answer."""
        return callable(getattr(self.given, "__getbatch__", None))

    def check(self, keys: Keys) -> None:
        """Refuses keys that are no keys of the source.

        Raises:
            OutOfRangeError: naming the first of them.
        """
        # As unsigned numbers, negative keys are the largest: one pass finds both.
        if keys.size and keys.view(np.uint64).max() >= self.length:
            wrong = int(keys[(keys < 0) | (keys >= self.length)][0])
            raise OutOfRangeError(
                f"key {wrong} is outside the source ({self.description}): its keys are 0 to "
                f"{self.length - 1}. Let the sampler yield record_keys in that range."
            )

    def read(self, keys: Keys) -> list[Any]:
        """The records of these keys, in their order, duplicates kept."""
        self.check(keys)
        if self.get_many is not None:
            return list(self.get_many(keys.tolist()))
        return list(map(self.get, keys.tolist()))

    def read_batch(self, keys: Keys, allocate: Allocate | None = None) -> Any:
        """What stacking the records would give, in one go; None if the source cannot.

        Raises:
            InvalidValueError: if the source's `__getbatch__` gives another number of rows.
        """
        if not self.has_batches:
            return None
        self.check(keys)
        batch = self.given.__getbatch__(keys)
        for leaf in flatten(batch)[0]:
            shape = getattr(leaf, "shape", None)
            if not shape or shape[0] != len(keys):
                given = "no array" if shape is None else f"an array of shape {tuple(shape)}"
                raise InvalidValueError(
                    f"__getbatch__ of {describe(self.given)} was asked for {len(keys)} records and "
                    f"returned {given}. Return a tree of arrays with one row for each index."
                )
        return batch

    def _get_many(self, keys: list[int]) -> Sequence[Any]:
        records = self.given.__getitems__(keys)
        if isinstance(records, dict) or not hasattr(records, "__len__"):
            raise InvalidTypeError(
                f"__getitems__ of {describe(self.given)} returned {describe(records)}; return a "
                "sequence with one record for each index."
            )
        if len(records) != len(keys):
            raise InvalidValueError(
                f"__getitems__ of {describe(self.given)} was asked for {len(keys)} records and "
                f"returned {len(records)}. Return one for each index, in order, duplicates kept."
            )
        result: Sequence[Any] = records
        return result


def describe(value: Any) -> str:
    """The type of a value, never its contents."""
    return type(value).__qualname__
