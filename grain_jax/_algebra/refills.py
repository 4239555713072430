"""Refills: whether code of the user's writes each record into the memory of one before.

A reader that fills one buffer (`readinto`, `read_direct`, `np.copyto`, a dict whose values it sets)
is right in a loop that uses each record at once, and wrong where records are read by the block.
Records of a block that lie in the same memory are read again and compared: a source may as well
hand out one array for many keys, and never change it. Where reading has changed a record, this one
and all that follow are copied as they are read.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import enum
import io
import pickle
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import global_random, held
from grain_jax._values.arrays import copied_view, reduce_view
from grain_jax._values.errors import InvalidValueError
from grain_jax._values.trees import IMMUTABLE_TYPES

__all__ = ["Refills", "copied"]

_MOST_PARTS = 64  # of one record that are looked at
_DEEPEST = 8
# After so much that was the same when read again, only some blocks are looked at.
_MOST_COMPARED = 256  # records, of 256 KiB at most, or as many as these in larger ones
_UNIT = 1 << 18
_PAUSE = 16
_MOST_BUFFERS = 8  # that are filled in turn
# Of these, records share objects that nobody changes.
_SHARED = (enum.Enum, type, types.ModuleType, types.FunctionType, np.dtype)

_Path = tuple[Any, ...]


class Refills:
    """What this process knows of one piece of code that reads.

    Attributes:
        seen: whether it writes into memory that it has handed out.
    """

    __slots__ = ("_compared", "_probed", "_skipped", "seen")

    def __init__(self) -> None:
        self.seen = False
        self._compared = self._skipped = 0
        self._probed: set[str] = set()

    def settled(
        self, read: Callable[[], list[Any]], look: Callable[[list[Any]], bool]
    ) -> list[Any]:
        """Returns what `read` returns, read again if `look` finds that reading has changed it.

        Args:
            read: reads a block; once `seen` is set, each record is copied as it is read.
            look: as the method of that name, for this block.
        """
        records = read()
        if records and not self.seen and look(records):
            records = read()
        return records

    def look(
        self, records: list[Any], keys: Sequence[int], length: int, again: Callable[[int], Any]
    ) -> bool:
        """Returns whether records of a block have been changed by reading others: see `seen`.

        Args:
            records: of the block; the caller's own list.
            keys: of the records.
            length: how many keys there are.
            again: reads the record of a key.
        """
        if len(records) == 1:
            # It tells nothing, and may be delivered before the next one is read.
            return self.probe("one", records, keys[0], length, again)
        if not self.seen:
            groups = _sharing(records, keys)
            if groups and self._is_due():
                with global_random.preserved():
                    self.seen = self._differ(groups, keys, again)
        return self.seen

    def probe(
        self, way: str, records: list[Any], key: int, length: int, again: Callable[[int], Any]
    ) -> bool:
        """Returns whether reading others changes a record, or what was read in one call.

        Others are read only once, and only where somebody else has a hold on the record.

        Args:
            way: in which of several ways it was read.
            records: where it stands first; the caller's own list.
            key: of the first record.
            length: how many keys there are.
            again: reads what stands at a key in the same way.
        """
        if way not in self._probed and not self.seen:
            self._probed.add(way)
            if records and held.is_kept(records, 0):
                with global_random.preserved():
                    self.seen = _changes(records[0], key, length, again)
        return self.seen

    def _is_due(self) -> bool:
        if self._compared < _MOST_COMPARED:
            return True
        self._skipped = (self._skipped + 1) % _PAUSE
        return self._skipped == 0

    def _differ(
        self,
        groups: list[list[tuple[int, _Path, Any]]],
        keys: Sequence[int],
        again: Callable[[int], Any],
    ) -> bool:
        """Whether records that lie in one memory are others when they are read again."""
        wanted: dict[int, list[tuple[_Path, Any]]] = {}
        for group in groups:
            last, _, value = group[-1]
            now = _content(value)
            for row, path, _ in group:
                if keys[row] != keys[last]:
                    wanted.setdefault(row, []).append((path, now))
        for row, parts in wanted.items():
            try:
                record = again(keys[row])
            except Exception:
                return True  # read alone, the record itself says what is wrong
            for path, now in parts:
                size = now.nbytes if isinstance(now, np.ndarray) else 0
                self._compared += 1 + size // _UNIT
                try:
                    value = _at(record, path)
                except (LookupError, TypeError):
                    return True
                if not _equal(now, value):
                    return True
        return False


def _changes(record: Any, key: int, length: int, again: Callable[[int], Any]) -> bool:
    """Whether a record is another one after the next ones have been read."""
    before = _content(record)
    for other in range(key + 1, key + min(length, _MOST_BUFFERS + 1)):
        # Another record may be a bad one: that is for whoever wants it.
        with contextlib.suppress(Exception):
            again(other % length)
        if not _equal(before, record):
            return True
    return False


def copied(record: Any, name: str, key: int) -> Any:
    """Returns a copy of a record, with all that is in it.

    Args:
        record: any object.
        name: of what it was read from, for the error.
        key: of the record, for the error.

    Raises:
        InvalidValueError: if it cannot be copied.
    """
    if type(record) in IMMUTABLE_TYPES:
        return record
    try:
        views = [part for _, part in _parts(record) if type(part) is memoryview]
        # `deepcopy` cannot copy these itself.
        return copy.deepcopy(record, {id(part): copied_view(part) for part in views})
    except Exception as error:
        raise InvalidValueError(
            f"{name} writes its records into the same memory again, and the record of key {key}, "
            f"of type {type(record).__name__}, cannot be copied ({type(error).__name__}: {error}). "
            "Return a new object for each record."
        ) from error


def _sharing(records: list[Any], keys: Sequence[int]) -> list[list[tuple[int, _Path, Any]]]:
    """Returns the parts of records of different keys that lie in the same memory."""
    by_object: dict[int, list[tuple[int, _Path, Any]]] = {}
    by_owner: dict[int, list[tuple[int, _Path, Any]]] = {}
    for row, record in enumerate(records):
        if type(record) in IMMUTABLE_TYPES:
            continue
        for path, part in _parts(record):
            owner = _owner(part)
            if owner is None:
                by_object.setdefault(_identity(part), []).append((row, path, part))
            elif type(owner) is not bytes:
                by_owner.setdefault(id(owner), []).append((row, path, part))
    groups = [group for group in by_object.values() if len(group) > 1]
    for owned in by_owner.values():
        if len(owned) > 1:
            by_address: dict[int, list[tuple[int, _Path, Any]]] = {}
            for row, path, part in owned:
                array = np.asarray(part)
                if array.size:
                    address = array.__array_interface__["data"][0]
                    by_address.setdefault(address, []).append((row, path, part))
            groups += [group for group in by_address.values() if len(group) > 1]
    return [group for group in groups if len({keys[row] for row, _, _ in group}) > 1]


def _identity(part: Any) -> int:
    """Returns what two tensors of torch over the same memory have equal; of others, themselves."""
    address = getattr(type(part), "data_ptr", None)
    return id(part) if address is None else int(address(part))


def _owner(part: Any) -> Any:
    """Returns the object whose memory an array or a view lies in; None if it is its own."""
    owner = None
    while True:
        if isinstance(part, np.ndarray):
            part = part.base
        elif type(part) is memoryview:
            part = part.obj
        else:
            return owner
        if part is None:
            return owner
        owner = part


def _parts(value: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yields what can be changed of a record, containers and what is in them, and where it is."""
    left = [(path, value)]
    for _ in range(_MOST_PARTS):
        if not left:
            return
        path, value = left.pop()
        kind = type(value)
        if kind in IMMUTABLE_TYPES or isinstance(value, _SHARED):
            continue
        if not isinstance(value, tuple):
            yield path, value
        if len(path) < _DEEPEST:
            if isinstance(value, dict):
                left += [((*path, key), part) for key, part in value.items()]
            elif isinstance(value, (list, tuple)) and len(value) <= _MOST_PARTS:
                left += [((*path, at), part) for at, part in enumerate(value)]


def _at(record: Any, path: _Path) -> Any:
    for key in path:
        record = record[key]
    return record


def _content(value: Any) -> Any:
    """Returns a copy of what is compared of a value; None where there is no telling."""
    array = _array(value)
    if array is not None:
        return np.array(array)
    try:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5)
        pickler.dispatch_table = {**copyreg.dispatch_table, memoryview: reduce_view}
        pickler.dump(value)
        return file.getvalue()
    except Exception:
        return None


def _array(value: Any) -> Any:
    if not isinstance(value, np.ndarray | memoryview):
        return None
    array = np.asarray(value)
    return None if array.dtype.hasobject else array


def _equal(content: Any, value: Any) -> bool:
    """Whether a value has still, or again, the content that another one had."""
    if content is None:
        return True
    array = _array(value)
    if array is None or not isinstance(content, np.ndarray):
        now = _content(value)
        return now is None or (type(now) is type(content) and bool(now == content))
    if content.shape != array.shape or content.dtype != array.dtype:
        return False
    one, other = _words(content), _words(array)
    return bool((one == other).all())


def _words(array: Any) -> Any:
    """Returns the memory of an array as few numbers."""
    kind = np.uint64 if array.nbytes % 8 == 0 else np.uint8
    return np.ascontiguousarray(array).reshape(-1).view(kind)
