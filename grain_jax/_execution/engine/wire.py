"""Tasks and outputs as bytes.

A result is one region of a slot: a fixed header, `info`, the places of foreign buffers, and the
pickled list of outputs. Arrays in it are (offset, shape, strides, dtype); their bytes lie elsewhere
in the slot. What travels over a socket is only where the region is, one struct of fixed size.
"""

from __future__ import annotations

import io
import itertools
import pickle
import struct
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from grain_jax._execution.engine import classes, culprit
from grain_jax._execution.engine.arena import Memory, Slot
from grain_jax._values import faults
from grain_jax._values.arrays import reduce_text, reduce_view

__all__ = [
    "DONE",
    "FAILED",
    "LOGGED",
    "LOST_START",
    "OWN",
    "REPORT",
    "RETAINED",
    "SKIPPED",
    "STARTED",
    "TASK",
    "Pickler",
    "Place",
    "Registry",
    "UnsendableError",
    "decode_info",
    "decode_outputs",
    "dumps",
    "encode",
]

# generation, attempt, slot, bytes of the slot in use, and how many of these, the last ones, are the
# task (0: it follows this header)
TASK = struct.Struct("<QQQQQ")
# Where inputs of a task are: slot, where their memory begins in there, the bytes of that, and the
# offset of the outputs in them.
Place = tuple[int, int, int, int]
OWN = 0  # stands for the slot of the attempt; slot 0 is the table
# attempt, row of the worker, status, offset, length, bytes of the slot in use;
# an error that could not be written to the slot follows inline
REPORT = struct.Struct("<QIIQQQ")
_HEAD = struct.Struct("<QQQQ")  # count, then the lengths of info, foreign buffers, outputs

DONE, FAILED, SKIPPED, LOST_START, STARTED = range(5)
LOGGED = 32  # flag: the worker has written to the log since its last report
RETAINED = 16  # flag: something in the worker still refers to memory of the slot or of the inputs

# cloudpickle would make a copy in memory of an open text file.
_REFUSED: tuple[type, ...] = (io.TextIOWrapper,)

_BASE = pickle.PickleBuffer(bytearray(1))  # stands for the memory of the slot in a pickle
_codes: dict[Any, Any] = {}  # how types are written
_by_name: dict[int, Any] = {}  # classes and functions that modules have, by id


class UnsendableError(Exception):
    """Output number `row` does not pickle, for the reason `error`."""

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


class Registry:
    """Classes and functions of the trainer's script, known by number on both sides.

    The pipeline carries them by value, so a worker has copies. What a worker sends back names the
    original, so that `isinstance` holds in the trainer.
    """

    def __init__(self, token: str, objects: Sequence[Any]) -> None:
        self.token = token
        self.objects = list(objects)
        self.numbers = {id(item): number for number, item in enumerate(self.objects)}
        _registries[token] = self


_registries: weakref.WeakValueDictionary[str, Registry] = weakref.WeakValueDictionary()


def _known(token: str, number: int) -> Any:
    return _registries[token].objects[number]


def _array(base: Any, offset: int, shape: Any, strides: Any, code: Any) -> npt.NDArray[Any]:
    return np.ndarray(shape, code, base, offset, strides)


def _sealed_array(*place: Any) -> npt.NDArray[Any]:
    return _sealed(_array(*place))


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # A view on the user's source, say: in the trainer's process it would be read-only, too.
    array.setflags(write=False)
    return array


def _empty(shape: tuple[int, ...], code: Any, writeable: bool) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.ndarray(shape, code)
    return array if writeable else _sealed(array)


def _copied(data: bytes, shape: tuple[int, ...], code: Any) -> npt.NDArray[Any]:
    return np.ndarray(shape, code, bytearray(data))


def _inline(array: npt.NDArray[Any]) -> Any:
    return _copied, (array.tobytes(), array.shape, _code(array.dtype))


def _code(dtype: np.dtype[Any]) -> Any:
    # The short text of a plain type is five times cheaper than the type; that of bfloat16 is `<V2`.
    # Types with fields that compare equal may differ in padding, and in what their fields say.
    if dtype.metadata is not None or dtype.fields is not None:
        return dtype
    code = _codes.get(dtype)
    if code is None:
        # Builtin types only: the text of float8_e5m2 is `<f1`, which NumPy does not read.
        plain = dtype.kind in "biufcSUmM" and dtype.itemsize and dtype.isbuiltin != 2
        code = dtype.str if plain else dtype
        if len(_codes) < 256:
            _codes[dtype] = code
    return code


class _Buffers:
    """Takes the out-of-band buffers of a pickle: those of plain arrays are all `_BASE`."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.places: list[tuple[int, int] | None] = []
        self.foreign = False

    def __call__(self, buffer: pickle.PickleBuffer) -> None:
        if buffer is _BASE:
            self.places.append(None)
            return
        raw = buffer.raw()
        start = self._slot.take(raw.nbytes)
        self._slot.bytes_at(start, raw.nbytes)[:] = np.frombuffer(raw, np.uint8)
        self.places.append((start, raw.nbytes))
        self.foreign = True


class Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Pickles the script's classes by value or by number, and arrays by their offset in a slot."""

    def __init__(
        self, file: io.BytesIO, registry: Registry | None, slot: Slot | None = None
    ) -> None:
        self._numbers = registry.numbers if registry is not None else {}
        self._token = registry.token if registry is not None else ""
        self._slot = slot
        # A method of its own as callback would be a cycle, and keep arrays until a collection.
        self.buffers = _Buffers(slot) if slot is not None else None
        super().__init__(file, 5, self.buffers)

    def reducer_override(self, obj: Any) -> Any:
        """Overrides how arrays, classes and functions are pickled."""
        kind = type(obj)
        if kind in _REFUSED and self._slot is not None:
            raise TypeError(f"cannot pickle '{kind.__module__}.{kind.__name__}' object")
        if kind is np.ndarray:
            if obj.dtype.hasobject:
                return NotImplemented if obj.flags.writeable else (_sealed, (obj.copy(),))
            return self._place(obj, self._slot) if self._slot is not None else _inline(obj)
        if kind is not types.FunctionType and not isinstance(obj, type):
            if isinstance(obj, np.ndarray) and not obj.flags.writeable:
                return _sealed, (obj.copy(),)
            if kind is np.str_ or kind is np.bytes_:
                return reduce_text(obj)
            if kind is memoryview:
                return reduce_view(obj)
            return NotImplemented  # cloudpickle's table has the reducer, if there is one
        key = id(obj)
        if _by_name.get(key) is obj:
            return NotImplemented
        number = self._numbers.get(key)
        if number is not None:
            return _known, (self._token, number)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple):
            return classes.completed(obj, reduced)
        if reduced is NotImplemented and len(_by_name) < 4096:
            _by_name[key] = obj  # to find this out takes cloudpickle 20 us
        return reduced

    def _place(self, array: npt.NDArray[Any], slot: Slot) -> Any:
        code = _code(array.dtype)
        if array.nbytes == 0:
            return _empty, (array.shape, code, array.flags.writeable)
        offset, writeable = slot.offset_of(array), array.flags.writeable
        if offset is None:
            copy = slot.allocate(array.shape, array.dtype)
            if array.flags.f_contiguous and not array.flags.c_contiguous:
                copy = copy.reshape(-1).reshape(array.shape, order="F")
            copy[...] = array
            offset, array = slot.end - array.nbytes, copy
        strides = None if array.flags.c_contiguous else array.strides
        return _array if writeable else _sealed_array, (_BASE, offset, array.shape, strides, code)


def dumps(value: Any, registry: Registry | None) -> bytes:
    """Pickles a value that holds no large arrays."""
    file = io.BytesIO()
    Pickler(file, registry).dump(value)
    return file.getvalue()


def _dump_info(info: Any, registry: Registry | None) -> bytes:
    if info is None:
        return b""
    try:
        return pickle.dumps(info, 5)
    except Exception:
        return dumps(info, registry)


def encode(
    outputs: Sequence[Any], info: Any, slot: Slot, registry: Registry | None
) -> tuple[int, int]:
    """Writes outputs and info to the slot; returns where their region begins and its length."""
    file = io.BytesIO()
    pickler = Pickler(file, registry, slot)
    try:
        pickler.dump(list(outputs))
    except Exception as error:
        rows = (r for r, one in enumerate(outputs) if not culprit.pickles(one, _REFUSED))
        row = next(rows, None)
        if row is None:
            raise  # it is not their fault: a disk is full, say
        place = culprit.describe(outputs[row], _REFUSED)
        faults.add_note(
            error, f"a worker cannot send its output: {place}; return plain data instead"
        )
        raise UnsendableError(row, error) from error
    body = file.getbuffer()
    extra = _dump_info(info, registry)
    buffers = pickler.buffers
    foreign = pickle.dumps(buffers.places, 5) if buffers is not None and buffers.foreign else b""
    head = _HEAD.pack(len(outputs), len(extra), len(foreign), len(body))
    front = head + extra + foreign
    length = len(front) + len(body)
    start = slot.take(length)
    region = slot.bytes_at(start, length).data
    region[: len(front)] = front
    region[len(front) :] = body
    return start, length


def decode_info(memory: Memory, offset: int) -> tuple[int, Any]:
    """Returns the number of outputs and the info of a result."""
    count, extra, _, _ = _HEAD.unpack_from(memory.data, offset)
    if not extra:
        return count, None
    start = offset + _HEAD.size
    return count, pickle.loads(memory.data[start : start + extra])


def _part(memory: Memory, start: int, size: int) -> npt.NDArray[np.uint8]:
    return np.ndarray((size,), np.uint8, memory, start)


def decode_outputs(memory: Memory, offset: int) -> list[Any]:
    """Returns the outputs of a result; their arrays are views on `memory`."""
    _, extra, foreign, body = _HEAD.unpack_from(memory.data, offset)
    start = offset + _HEAD.size + extra
    buffers: Iterator[Any] = itertools.repeat(memory)
    if foreign:
        places = pickle.loads(memory.data[start : start + foreign])
        buffers = (memory if place is None else _part(memory, *place) for place in places)
    start += foreign
    outputs: list[Any] = pickle.loads(memory.data[start : start + body], buffers=buffers)
    return outputs
