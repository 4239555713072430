"""Records as pickles without their arrays, classes and functions: cheap to copy and to share."""

from __future__ import annotations

import array
import dataclasses
import functools
import io
import pickle
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from grain_jax._values.arrays import reduce_text, reduce_view

__all__ = [
    "Array",
    "Keys",
    "Packed",
    "Pickler",
    "fields_of",
    "frozen_array",
    "load",
    "pickled_size",
    "seal",
]

Array = np.ndarray[Any, Any]
Keys = np.ndarray[Any, np.dtype[np.int64]]

_APART = (
    1 << 20
)  # bytes; arrays from this size on travel by themselves, mapped where they are files
_SHARED_FROM = 1 << 12  # bytes; an array of this size that several records have is written once
_ALIGNMENT = 64

_REFERRED = (type, types.FunctionType, types.ModuleType, type(functools.cache(len)))


def frozen_array(given: Array) -> Array:
    """A read-only view."""
    view = given[...]
    # By position: it takes a third of the time.
    view.setflags(False)  # type: ignore[call-arg]
    return view


def seal(record: Any) -> Any:
    """The record itself, which nobody else has: its arrays are read-only now."""
    left, seen = [record], set()
    while left:
        value = left.pop()
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
        elif id(value) not in seen:  # it may be inside itself
            seen.add(id(value))
            if isinstance(value, dict):
                left += value.values()
            elif isinstance(value, list | tuple):
                left += value
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                left += [part for _, part in fields_of(value)]
    return record


def fields_of(record: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass that are set."""
    for field in dataclasses.fields(record):
        if hasattr(record, field.name):
            yield field.name, getattr(record, field.name)


_loading = threading.local()


def load(data: Any, memories: Sequence[Any], objects: list[Any]) -> Any:
    before = getattr(_loading, "objects", None)  # a user's class may read another source here
    _loading.objects = objects
    try:
        return pickle.loads(data, buffers=memories)
    finally:
        _loading.objects = before


def _referred(number: int) -> Any:
    return _loading.objects[number]


def _apart(number: int) -> Array:
    return frozen_array(_loading.objects[number])


def _array(memory: Any, shape: tuple[int, ...], code: Any, order: Any) -> Array:
    return np.ndarray(shape, code, memory, order=order)


def _empty(shape: tuple[int, ...], code: Any) -> Array:
    return frozen_array(np.ndarray(shape, code))


_OWN = frozenset(map(id, (_referred, _apart, _array, _empty)))


@functools.cache
def _reducers() -> dict[type, Callable[[Any], Any]]:
    """How properties, code and the like are pickled."""
    import cloudpickle

    found = dict(cloudpickle.Pickler.dispatch_table)
    found.pop(io.TextIOWrapper, None)  # it would be another object, with a copy of the text
    found[np.str_] = found[np.bytes_] = reduce_text
    found[memoryview] = reduce_view
    return found


class Pickler(pickle.Pickler):
    """Keeps the memory of arrays beside the pickle, and numbers for classes and functions in it.

    Attributes:
        objects: what the numbers stand for; they travel once, whatever refers to them.
        buffers: the memory of the arrays that the last pickle needs, in order.
        shared: the memory of arrays that several records may have, by id.
        unsealed: whether there was an array that does not come back read-only by itself.
    """

    def __init__(self, file: io.BytesIO, apart: bool) -> None:
        self.objects: list[Any] = []
        self.buffers: list[pickle.PickleBuffer] = []
        self.shared: dict[int, pickle.PickleBuffer] = {}
        self.unsealed = False
        self._numbers: dict[int, int] = {}
        self._once: dict[int, tuple[Any, Any]] = {}  # the array, so that its id stays its own
        self._sets_apart = apart
        self._own: set[int] = set()
        keep = functools.partial(_keep, self._own, self.buffers)
        super().__init__(file, 5, buffer_callback=keep)

    def forget(self) -> None:
        """Begins another record."""
        self.clear_memo()
        self.buffers.clear()
        self._own.clear()

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is np.ndarray and not obj.dtype.hasobject:
            return self._reduce_array(obj)
        if isinstance(obj, _REFERRED) or kind.__name__ == "ArrayImpl":  # an array of JAX
            return NotImplemented if id(obj) in _OWN else (_referred, (self._number(obj),))
        if isinstance(obj, np.memmap):
            return self._reduce_array(np.asarray(obj))
        if isinstance(obj, np.ndarray):
            self.unsealed = True
            return NotImplemented
        reduce = _reducers().get(kind)
        return NotImplemented if reduce is None else reduce(obj)

    def _number(self, obj: Any) -> int:
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.objects)
            self.objects.append(obj)
        return number

    def _reduce_array(self, given: Array) -> Any:
        code: Any = given.dtype
        # The text of a type that NumPy does not know itself, such as float8_e5m2, is not read back.
        if code.kind in "biufcSU" and code.metadata is None and code.isbuiltin != 2:
            code = code.str
        if given.nbytes == 0:
            return _empty, (given.shape, code)
        if not self._sets_apart:
            return self._buffer_of(given, code)
        if given.nbytes >= _APART:
            return _apart, (self._number(given),)
        if given.nbytes < _SHARED_FROM:
            return self._buffer_of(given, code)
        if id(given) not in self._once:
            reduced = self._buffer_of(given, code)
            self._once[id(given)] = given, reduced
            self.shared[id(reduced[1][0])] = reduced[1][0]
        _, reduced = self._once[id(given)]
        self._own.add(id(reduced[1][0]))
        return reduced

    def _buffer_of(self, given: Array, code: Any) -> Any:
        is_c = given.flags.c_contiguous or not given.flags.f_contiguous
        order: Literal["C", "F"] = "C" if is_c else "F"
        flat: Any = given.ravel(order).view(np.uint8)
        buffer = pickle.PickleBuffer(flat)
        self._own.add(id(buffer))
        return _array, (buffer, given.shape, code, order)


def _keep(own: set[int], beside: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Says whether a buffer goes into the pickle: those of other classes than arrays do."""
    if id(buffer) not in own:
        return True  # rebuilt around memory beside the pickle, some would be the original
    beside.append(buffer)
    return False


def pickled_size(record: Any) -> int:
    """How many bytes a record takes without its arrays, classes and functions."""
    file = io.BytesIO()
    Pickler(file, apart=False).dump(record)
    return file.tell()


class Packed:
    """Records in one memory, each pickled by itself: every reader gets a copy of its own.

    The memory travels beside the pickle of the pipeline, so that all worker processes map one copy
    of it. An object that several records refer to is copied for each of them; of arrays from 4 KiB
    on there is one.
    """

    def __init__(
        self,
        memory: Any,
        places: Keys,
        firsts: Keys | None,
        objects: list[Any],
        unsealed: bool,
    ) -> None:
        self._memory = memoryview(memory).cast("B").toreadonly()
        self._places = places  # (parts, 2): where each begins, and how long it is
        self._firsts = firsts  # which part is a record's pickle, before those of its arrays
        self._objects = objects
        self._unsealed = unsealed

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        memory: Any = pickle.PickleBuffer(self._memory) if protocol > 4 else bytes(self._memory)
        return type(self), (
            memory,
            self._places,
            self._firsts,
            self._objects,
            self._unsealed,
        )

    @classmethod
    def of(cls, records: Sequence[Any]) -> Packed:
        """Packs records.

        Raises:
            Exception: what a record raises that does not pickle.
        """
        file = io.BytesIO()
        pickler = Pickler(file, apart=True)
        dump, clear, tell, buffers = pickler.dump, pickler.clear_memo, file.tell, pickler.buffers
        places, firsts = array.array("q"), array.array("q", [0])
        known: dict[int, tuple[int, int]] = {}
        begin = 0
        for record in records:
            dump(record)
            end = tell()
            places.append(begin)
            places.append(end - begin)
            begin = end
            for buffer in buffers:
                place = known.get(id(buffer))
                if place is None:
                    file.write(bytes(-begin % _ALIGNMENT))
                    place = tell(), file.write(buffer)
                    begin = sum(place)
                    if id(buffer) in pickler.shared:
                        known[id(buffer)] = place
                places.extend(place)
            firsts.append(len(places) // 2)
            if buffers:
                pickler.forget()
            else:
                clear()
        table = np.frombuffer(places, np.int64).reshape(-1, 2)
        parts = None if len(table) == len(records) else np.frombuffer(firsts, np.int64)
        # No copy: the file's own bytes, and no view of the file, which could not close before it.
        return cls(file.getvalue(), table, parts, pickler.objects, pickler.unsealed)

    def __len__(self) -> int:
        return len(self._places) if self._firsts is None else len(self._firsts) - 1

    def rows(self, keys: Keys) -> list[Any]:
        """Copies of the records of these keys."""
        memory, loads = self._memory, pickle.loads
        before = getattr(_loading, "objects", None)
        _loading.objects = self._objects
        try:
            if self._firsts is None:
                records = [
                    loads(memory[start : start + size])
                    for start, size in self._places[keys].tolist()
                ]
            else:
                spans = zip(
                    self._firsts[keys].tolist(), self._firsts[keys + 1].tolist(), strict=True
                )
                records = [self._load(begin, end) for begin, end in spans]
        finally:
            _loading.objects = before
        return list(map(seal, records)) if self._unsealed else records

    def _load(self, begin: int, end: int) -> Any:
        memory = self._memory
        parts = [memory[start : start + size] for start, size in self._places[begin:end].tolist()]
        return pickle.loads(parts[0], buffers=parts[1:])
