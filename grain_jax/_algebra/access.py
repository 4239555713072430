"""How the library reads a data source: a block of keys at a time, whatever the source offers."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import quiet
from grain_jax._algebra.guard import SOURCE, Guard
from grain_jax._algebra.per_process import PerProcess
from grain_jax._algebra.refills import Refills
from grain_jax._algebra.stacking import Allocate
from grain_jax._values import arrivals, faults, progress
from grain_jax._values.errors import InvalidTypeError, InvalidValueError, OutOfRangeError
from grain_jax._values.trees import flatten

__all__ = [
    "READING",
    "Keys",
    "Source",
    "describe",
    "failed_row",
    "failing_row",
    "mark_failure",
    "mark_row",
    "of_class",
]

READING = "reading the source"
"""What messages call it."""

_ROW = "_grain_jax_row"

_SEARCH_TIME = 1.0

_log = logging.getLogger("grain_jax")

Keys = np.ndarray[Any, np.dtype[np.int64]]


class Source:
    """A data source by protocol, and the base of those that the library knows better.

    Attributes:
        given: the user's object.
        length: its number of records, when it was adapted.
        in_memory: whether reading neither waits nor calls the user's code, so that threads cannot
            help.
        has_gaps: whether a record is known to be None, which is absent.
        get: one record by a Python int.
        get_many: several records by a list of Python ints; None if the source cannot.
        guard: sees whether reading draws from the process-wide generators.
        refills: sees whether reading writes into records that were read before.
        order: what of the source itself fixes which records come in which order.
    """

    in_memory = False
    has_gaps = False
    order: Sequence[str] = ()

    def __init__(self, given: Any, length: int | None = None) -> None:
        self.given = given
        self.length = len(given) if length is None else length
        self.get: Callable[[int], Any] = of_class(given, "__getitem__")
        self._given_many = of_class(given, "__getitems__", beside="__getitem__")
        self._given_batch = of_class(given, "__getbatch__", beside="__getitem__")
        self.get_many: Callable[[list[int]], Sequence[Any]] | None = None
        if self._given_many is not None:
            self.get_many = self._get_many
        self.in_memory = bool(of_class(given, "records_in_memory", beside="__getitem__"))
        # A kind that the library knows better is read by code of its own.
        self.guard = Guard(SOURCE, type(self) is Source and not self.in_memory)
        self.refills = Refills()

    def __reduce__(self) -> tuple[Any, ...]:
        # The order of keys is made from the length here, and is not to wrap around at another one.
        return _arrived, (type(self), self.given, self.length)

    def __repr__(self) -> str:
        return self.description

    def snapshot(self) -> Source:
        """The source for one iteration: a container as it is now, and others as they are."""
        return self

    def __len__(self) -> int:
        return self.length

    @property
    def description(self) -> str:
        """The type and the length: nothing that depends on the records."""
        return f"{describe(self.given)} of length {self.length}"

    @property
    def has_batches(self) -> bool:
        """Whether `read_batch` can be expected to answer."""
        return self._given_batch is not None

    def may_draw(self) -> bool:
        """Whether reading may draw, as far as its code says; where not, it is not watched."""
        if not self.in_memory and not self.guard.draws:
            self.guard.may_draw = not quiet.is_quiet(self.code())
        return self.guard.may_draw

    def code(self) -> list[Any]:
        """The functions that read."""
        if isinstance(self.given, PerProcess):
            return Source(self.given.reader, self.length).code()
        several = [self._given_many, self._given_batch]
        found = [one for one in several if one is not None]
        return [of_class(self.given, "__len__"), self.get, *found]

    @property
    def is_known(self) -> bool:
        """Whether its records are made by code of the library."""
        if isinstance(self.given, PerProcess):
            return False
        library = type(self.given).__module__.partition(".")[0]
        return type(self) is not Source or self.in_memory or library == "grain_jax"

    @property
    def closes(self) -> bool:
        """Whether the user's object says how it is closed."""
        return _closes(type(self), self.given)

    def close(self) -> None:
        """Closes the user's object, if it says how."""
        _close(type(self), self.given)

    def whence(self, key: int) -> str:
        """Says in words which record a key is of."""
        return f"record key {key}"

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
        wanted: list[int] = keys.tolist()
        if self.get_many is None:
            return self.read_each(wanted, [])
        try:
            return list(self.get_many(wanted))
        except BaseException as error:
            row = failing_row(self.get, wanted, error)
            mark_failure(error, self, row, wanted)
            raise

    def read_each(self, keys: list[int], records: list[Any]) -> list[Any]:
        """Appends the records that are missing, one by one, and returns all."""
        get, append = self.get, records.append
        progress.at(READING, lambda: f"key {keys[min(len(records), len(keys) - 1)]}")
        try:
            for key in keys[len(records) :] if records else keys:
                append(get(key))
        except BaseException as error:
            mark_failure(error, self, len(records), keys)
            raise
        return records

    def read_batch(self, keys: Keys, allocate: Allocate | None = None) -> Any:
        """What stacking the records would give, in one go; None if the source cannot.

        Raises:
            InvalidValueError: if the source's `__getbatch__` gives another number of rows.
        """
        if self._given_batch is None:
            return None
        self.check(keys)
        batch = self._given_batch(keys)
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
        assert self._given_many is not None
        records = self._given_many(keys)
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


def _closes(kind: type[Source], given: Any) -> bool:
    if hasattr(type(given), "close"):
        return kind is Source
    # Leaving the context of a Hugging Face dataset only makes it unusable: it has no file open.
    is_hugging_face = type(given).__module__.partition(".")[0] == "datasets"
    return kind is Source and hasattr(type(given), "__exit__") and not is_hugging_face


def _close(kind: type[Source], given: Any) -> None:
    if not _closes(kind, given):
        return
    if hasattr(type(given), "close"):
        given.close()
    else:
        given.__exit__(None, None, None)


def _arrived(kind: type[Source], given: Any, length: int) -> Source:
    """The source in another process.

    Raises:
        InvalidValueError: if it has fewer records there.
    """
    arrivals.note(functools.partial(_close, kind, given))
    found = len(given)
    if found < length:
        raise InvalidValueError(
            f"the data source ({describe(given)}) has {found} records in this process, and had "
            f"{length} where the pipeline was made: files may have been removed since, or its "
            "__len__ looks at what did not travel. Let the object keep what it has listed (the "
            "names of its files, say) and pickle it, and make the pipeline anew after records "
            "were removed."
        )
    if found > length:
        _log.warning(
            "The data source (%s) has %d records in a worker process, and had %d where the "
            "pipeline was made. The first %d are read, which are the same records only if the "
            "others were added behind them.",
            describe(given),
            found,
            length,
            length,
        )
    return kind(given, length)


def of_class(given: Any, name: str, beside: str = "") -> Any:
    """What an object's class has under a name, for this object; None where it has nothing.

    Args:
        given: the object. As for special methods of Python, its own attributes and what its
            `__getattr__` finds in another object do not count.
        name: of the method.
        beside: a method that it belongs to: where a class further down redefines that one, what
            its bases have under `name` does not count.
    """
    for kind in type(given).__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, given, type(given))
        if beside in vars(kind):
            return None
    return None


def mark_failure(error: BaseException, source: Source, row: int | None, keys: list[int]) -> None:
    """Notes on an exception of the source which of the block's keys it was raised for."""
    if row is None and len(keys) == 1:
        row = 0
    if row is not None:
        text = f"key {keys[row]}"
    else:
        text = f"{len(keys)} keys from {keys[0]} to {keys[-1]}" if keys else "no keys"
    faults.add_note(error, f"raised by the data source ({source.description}) for {text}")
    mark_row(error, row)


def mark_row(error: BaseException, row: int | None) -> None:
    """Notes on an exception which of the records that are read it belongs to; None: not known."""
    faults.set_attribute(error, _ROW, row)


def failed_row(error: BaseException) -> int | None:
    """The row of the records that are read that an exception belongs to, if it is known."""
    row: int | None = getattr(error, _ROW, None)
    return row


def failing_row(get: Callable[[int], Any], keys: list[int], error: BaseException) -> int | None:
    """Looks for the record that made reading all of them raise, for a second at most."""
    end = time.monotonic() + _SEARCH_TIME
    for row, key in enumerate(keys):
        if time.monotonic() > end or not isinstance(error, Exception):
            break
        try:
            get(key)
        except Exception as again:
            return row if type(again) is type(error) else None
    return None


def describe(value: Any) -> str:
    """The type of a value, never its contents."""
    return type(value).__qualname__
