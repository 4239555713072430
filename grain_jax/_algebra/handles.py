"""Objects that stand for files: on their way to another process they are opened anew, not copied.

They are arrays mapped from a file, and the objects of h5py.
"""

from __future__ import annotations

import importlib
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from grain_jax._values.errors import InvalidTypeError, InvalidValueError

__all__ = ["bounds", "reduce"]

_SMALLEST = 1 << 16  # bytes; a copy of less costs less than a mapping

_Identity = tuple[int, int]


def reduce(obj: Any) -> tuple[Any, ...] | None:
    """How to pickle such an object, as `__reduce__` says it; None for all others.

    Raises:
        InvalidTypeError: the object cannot be had in another process; the text says why.
    """
    if isinstance(obj, np.ndarray):
        return _reduce_array(obj) if obj.nbytes >= _SMALLEST else None
    h5py = sys.modules.get("h5py")
    if h5py is not None and isinstance(obj, h5py.Group | h5py.Dataset):
        return _reduce_hdf5(obj)
    return None


def _identity(path: str) -> _Identity:
    status = os.stat(path)
    return status.st_dev, status.st_ino


# --- arrays ------------------------------------------------------------------------------------


def _reduce_array(given: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    base: Any = given
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    if not isinstance(base, mmap.mmap):
        return None
    low, high = bounds(given)
    place = _place(low, high) if sys.platform == "linux" else _place_said(given, base, low)
    if place is None:
        return None
    path, offset = place
    try:
        status = os.stat(path)
    except OSError:
        return None  # deleted, say: what is mapped is copied
    if not stat.S_ISREG(status.st_mode) or status.st_size < offset + high - low:
        return None
    start = given.__array_interface__["data"][0] - low
    return _map, (
        path,
        (status.st_dev, status.st_ino),
        offset,
        high - low,
        (type(given), given.shape, given.dtype, start, given.strides),
        given.flags.writeable,
    )


def bounds(given: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The addresses of the first byte, and behind the last."""
    low = high = given.__array_interface__["data"][0]
    for size, stride in zip(given.shape, given.strides, strict=True):
        low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
    return low, high + given.itemsize


def _place(low: int, high: int) -> tuple[str, int] | None:
    """The file that lies at these addresses, and where in it; None if it is none, or a copy.

    The kernel knows: a file that was renamed has its new name, and a deleted one none.
    """
    found: tuple[str, int] | None = None
    at = low
    for begin, end, flags, offset, path in _mappings():
        if end <= at:
            continue
        edited = "p" in flags and "w" in flags  # what was written to it is in no file
        if begin > at or edited or not path.startswith("/") or path.endswith(" (deleted)"):
            return None
        place = path, offset - begin + low
        if found not in (None, place):
            return None
        found, at = place, end
        if high <= end:
            return found
    return None


def _mappings() -> Iterator[tuple[int, int, str, int, str]]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            addresses, flags, offset, _, _, *rest = line.rstrip("\n").split(maxsplit=5)
            begin, _, end = addresses.partition("-")
            path = rest[0].replace("\\012", "\n") if rest else ""
            yield int(begin, 16), int(end, 16), flags, int(offset, 16), path


def _place_said(given: Any, base: mmap.mmap, low: int) -> tuple[str, int] | None:
    """The same, from what NumPy remembers of the file, where the kernel does not tell."""
    while isinstance(given, np.ndarray) and not isinstance(given, np.memmap):
        given = given.base
    if not isinstance(given, np.memmap) or given.mode == "c" or given.filename is None:
        return None
    begin = np.frombuffer(base, np.uint8).__array_interface__["data"][0]
    offset = given.offset - given.offset % mmap.ALLOCATIONGRANULARITY
    return os.path.abspath(os.fspath(given.filename)), offset + low - begin


def _map(
    path: str,
    identity: _Identity,
    offset: int,
    size: int,
    layout: tuple[type, Any, Any, int, Any],
    writeable: bool,
) -> np.ndarray[Any, Any]:
    _check(path, identity)
    if os.path.getsize(path) < offset + size:
        raise InvalidValueError(
            f"{path} has {os.path.getsize(path)} bytes, and an array of the pipeline is mapped "
            f"from its first {offset + size}: it was cut since. Load it again."
        )
    memory = np.memmap(path, np.uint8, "r+" if writeable else "r", offset, (size,))
    kind, shape, dtype, start, strides = layout
    array: np.ndarray[Any, Any] = np.ndarray.__new__(kind, shape, dtype, memory, start, strides)
    if isinstance(array, np.memmap):
        array.__array_finalize__(memory)
    return array


def _check(path: str, identity: _Identity) -> None:
    if _identity(path) != identity:
        raise InvalidValueError(
            f"{path} is another file than the one that the pipeline has opened: it was replaced "
            "since. Open it again, and iterate anew."
        )


# --- HDF5 --------------------------------------------------------------------------------------


def _reduce_hdf5(obj: Any) -> tuple[Any, ...]:
    name = f"h5py.{type(obj).__name__}"
    if not obj:
        raise InvalidTypeError(f"a {name} whose file is closed; keep the file open while iterating")
    file = obj.file
    label = f"{name} {obj.name!r} of {file.filename}"
    again = 'write h5py.File(path, "r")'
    if file.driver not in ("sec2", "stdio", "windows"):
        raise InvalidTypeError(
            f"the {label} comes through the driver {file.driver!r}, and worker processes can open "
            f"files on disk only: {again}, or load it into memory with [...]"
        )
    if file.mode != "r":
        raise InvalidTypeError(
            f"the {label} is open for writing, and worker processes would not see what is not on "
            f"disk yet: close it and {again}"
        )
    if obj.name is None:
        raise InvalidTypeError(f"the {label} has no name in its file, by which to open it")
    path = os.path.abspath(file.filename)
    if sys.platform == "linux" and file.driver == "sec2":
        path = os.readlink(f"/proc/self/fd/{file.id.get_vfd_handle()}")
    try:
        identity = _identity(path)
    except OSError as error:
        raise InvalidTypeError(f"the file of the {label} cannot be opened again: {error}") from None
    return _open_hdf5, (path, identity, obj.name, type(obj) is type(file), bool(file.swmr_mode))


def _open_hdf5(path: str, identity: _Identity, name: str, whole: bool, swmr: bool) -> Any:
    _check(path, identity)
    file = importlib.import_module("h5py").File(path, "r", swmr=swmr)
    return file if whole else file[name]
