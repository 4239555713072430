"""Records in memory that all processes of a machine share, by name.

The memory is an anonymous memory file, which the kernel frees with its last user, whatever way that
one ends, and which the size of `/dev/shm` does not limit. Its name is a small file (`names.py`). So
nothing is registered with Python's resource tracker, by nobody. What a creator leaves behind that
was killed is that small file: the next creation removes it.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, overload

import numpy as np

from grain_jax._algebra import names
from grain_jax._algebra.packing import seal
from grain_jax._values.errors import ClosedError, InvalidTypeError, InvalidValueError

__all__ = ["SharedMemoryDataSource"]

_MAGIC = b"grainjx2"
_HEADER = 24  # the magic, then where the table of contents begins and how long it is
_ALIGNMENT = 64


class SharedMemoryDataSource(Sequence[Any]):
    """Records in shared memory: written once, read by any process of this machine without a copy.

    Pickling it takes only the name along; the other side attaches. Records are anything that
    pickles; arrays in them are stored as they are and come back as read-only views.

    Args:
        elements: the records to store. None attaches to memory that another source made.
        name: what to call the memory, or what it is called. One is made up if it is not given.

    >>> source = SharedMemoryDataSource(["a", {"x": 1}])
    >>> attached = SharedMemoryDataSource(name=source.name)
    >>> len(attached), attached[1]
    (2, {'x': 1})
    >>> source.unlink()

    The memory is there until `unlink()` or the exit of the process that made it (one with a
    made-up name also goes with the object), and for those who attached before for as long as they
    hold a record.

    Raises:
        FileNotFoundError: if there is nothing of that name to attach to.
        FileExistsError: if the name is taken.
        PermissionError: if the folder of names is not this user's alone.
        InvalidTypeError: if a record does not pickle, by its index.
    """

    records_in_memory = True

    _view: memoryview | None  # the memory; None after close()
    _rows: np.ndarray[Any, Any] | None  # all records where they are rows of one array
    _length: int
    _numbers: bool

    def __init__(self, elements: Sequence[Any] | None = None, *, name: str | None = None) -> None:
        self._descriptor: int | None = None
        self._creator = 0
        self._lasting = name is not None
        if elements is None and name is None:
            raise InvalidValueError(
                "SharedMemoryDataSource needs the elements to share, or the name of a source to "
                "attach to."
            )
        if name is not None and (name in ("", ".", "..") or "/" in name or "\0" in name):
            raise InvalidValueError(f"name={name!r} is no file name; use letters and digits.")
        self._name = name or names.made_up()
        self._path = names.path_of(self._name)
        if elements is not None:
            self._create(elements)
        self._attach()

    @property
    def name(self) -> str:
        """What another process attaches to."""
        return self._name

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"SharedMemoryDataSource(name={self._name}, len={self._length})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (type(self), self._name, self._path)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(self._length)))
        return self.__getitems__((range(self._length)[index],))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The records of these indices, in their order."""
        view, rows = self._view, self._rows
        if view is None:
            raise ClosedError(f"{self!r} was read after close(); attach again by its name.")
        if rows is None:
            return [self._load(view, index) for index in indices]
        if self._numbers:
            numbers: list[Any] = rows[list(indices)].tolist()
            return numbers
        return [rows[index] for index in indices]

    def close(self) -> None:
        """Ends reading here. Records handed out stay valid. Others are not affected."""
        self._view = self._rows = None

    def unlink(self) -> None:
        """Takes the name away, so that the memory goes with its last reader.

        Does nothing in a process that did not make the memory.
        """
        if self._creator != os.getpid():
            return
        if self._descriptor is not None:
            names.remove(self._path)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> SharedMemoryDataSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_lasting", True):
            self.unlink()

    def _create(self, elements: Sequence[Any]) -> None:
        if not hasattr(elements, "__len__") or not hasattr(elements, "__getitem__"):
            raise InvalidTypeError(
                f"SharedMemoryDataSource stores a sequence of records, not "
                f"{type(elements).__qualname__}; write list(...)."
            )
        descriptor, where = names.file()
        try:
            with open(descriptor, "wb", closefd=False) as file:
                _write(elements, file)
            where, former = None, where
            if not names.create(self._path, descriptor, former):
                raise FileExistsError(
                    f"there is shared memory of the name {self._name!r} already: unlink() it first,"
                    " attach to it without elements, or choose another name."
                )
        except BaseException:
            os.close(descriptor)
            if where is not None:
                os.unlink(where)
            raise
        self._descriptor, self._creator = descriptor, os.getpid()

    def _attach(self) -> None:
        memory = _map(self._path)
        if memory is None:
            raise FileNotFoundError(
                f"there is no shared memory of the name {self._name!r}: nothing was stored under "
                "it on this machine, its creator has ended, or unlink() was called."
            )
        start = int.from_bytes(memory[8:16], "little")
        size = int.from_bytes(memory[16:24], "little")
        try:
            contents = json.loads(memory[start : start + size])
        except ValueError as error:
            raise InvalidValueError(
                f"{self._path} is no shared memory of this library: {error}. Remove it."
            ) from error
        self._view = memoryview(memory)
        self._length = contents["length"]
        self._rows = None
        self._numbers = contents.get("numbers", False)
        if "dtype" in contents:
            dtype = _dtype_of(contents["dtype"])
            self._rows = np.ndarray(contents["shape"], dtype, memory, contents["start"])
        else:
            count, length = contents["pieces"], self._length + 1
            self._table = np.ndarray((count, 2), np.int64, memory, contents["table"])
            self._starts = np.ndarray((length,), np.int64, memory, contents["starts"])

    def _load(self, view: memoryview, index: int) -> Any:
        parts = self._table[self._starts[index] : self._starts[index + 1]].tolist()
        pieces = [view[start : start + size] for start, size in parts]
        return seal(pickle.loads(pieces[0], buffers=pieces[1:]))


def _attached(kind: type[SharedMemoryDataSource], name: str, path: str) -> SharedMemoryDataSource:
    """Attaches by the path itself: the temporary folder may be another one here."""
    source = kind.__new__(kind)
    source._name, source._path = name, path
    source._descriptor, source._creator, source._lasting = None, 0, True
    source._attach()
    return source


def _map(path: str) -> mmap.mmap | None:
    """The memory of a name; None if there is none any more."""
    descriptor = names.find(path)
    if descriptor is None:
        return None
    try:
        if os.fstat(descriptor).st_size < _HEADER:
            return None
        memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    return memory if memory[:8] == _MAGIC else None


# --- contents ----------------------------------------------------------------------------------


def _write(elements: Sequence[Any], file: BinaryIO) -> None:
    file.write(_MAGIC + bytes(_HEADER - len(_MAGIC)))
    _pad(file)
    contents = _write_rows(elements, file)
    if contents is None:
        contents = _write_records(elements, file)
    start = file.tell()
    size = file.write(json.dumps({"length": len(elements), **contents}).encode())
    file.seek(len(_MAGIC))
    file.write(start.to_bytes(8, "little") + size.to_bytes(8, "little"))


def _write_rows(elements: Sequence[Any], file: BinaryIO) -> dict[str, Any] | None:
    """Stores records that are rows of one array as that array; None if they are not."""
    if not len(elements):
        return None
    first = elements[0]
    numbers = type(first) in (int, float) and type(elements) in (list, tuple, range)
    rows: Iterable[np.ndarray[Any, Any]]
    if numbers:
        kind = type(first)
        if any(type(element) is not kind for element in elements):
            return None
        try:
            rows = [np.fromiter(elements, np.int64 if kind is int else np.float64, len(elements))]
        except OverflowError:
            return None
        shape, dtype = (len(elements),), rows[0].dtype
    elif isinstance(elements, np.ndarray) and not elements.dtype.hasobject:
        rows, shape, dtype = _slabs(elements), elements.shape, elements.dtype
    elif type(first) is np.ndarray and not first.dtype.hasobject:
        shape, dtype = (len(elements), *first.shape), first.dtype
        for row in elements:
            if type(row) is not np.ndarray or row.shape != first.shape or row.dtype != dtype:
                return None
        rows = elements
    else:
        return None
    text = _text_of(dtype)
    if text is None:
        return None
    start = file.tell()
    for row in rows:
        file.write(np.ascontiguousarray(row).reshape(-1).view(np.uint8).data)
    # NumPy asks for some memory even of an array without any.
    file.write(bytes(8))
    return {"shape": shape, "dtype": text, "start": start, "numbers": numbers}


def _text_of(dtype: np.dtype[Any]) -> str | None:
    """A dtype as text that means the same everywhere; None if it has fields, say."""
    text = dtype.name if dtype.isbuiltin == 2 else dtype.str
    try:
        return text if _dtype_of(text) == dtype and dtype.metadata is None else None
    except TypeError:
        return None


def _dtype_of(text: str) -> np.dtype[Any]:
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes  # which makes NumPy know the names of more

        return np.dtype(getattr(ml_dtypes, text, text))


def _slabs(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """An array in pieces of some megabytes, so that no second copy is made of it."""
    step = max(1, (4 << 20) * len(array) // max(array.nbytes, 1))
    for start in range(0, len(array), step):
        yield np.asarray(array[start : start + step])


def _write_records(elements: Sequence[Any], file: BinaryIO) -> dict[str, Any]:
    table: list[tuple[int, int]] = []
    starts = [0]
    for index in range(len(elements)):
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        try:
            _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(elements[index])
        except Exception as error:
            raise InvalidTypeError(
                f"record {index} does not pickle, so it cannot be shared: {error}. Store arrays, "
                "numbers, text and containers of them."
            ) from error
        for piece in (out.getbuffer(), *[buffer.raw() for buffer in buffers]):
            _pad(file)
            table.append((file.tell(), piece.nbytes))
            file.write(piece)
        starts.append(len(table))
    places = {"pieces": len(table)}
    for name, numbers in (("table", table), ("starts", starts)):
        _pad(file)
        places[name] = file.tell()
        file.write(np.array(numbers, np.int64).tobytes())
    file.write(bytes(8))
    return places


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGNMENT))


class _Pickler(pickle.Pickler):
    """Stores arrays of JAX as those of NumPy: a reader has no use for the device."""

    def reducer_override(self, obj: Any) -> Any:
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(obj, jax.Array):
            return np.asarray(obj).__reduce_ex__(5)
        return NotImplemented
