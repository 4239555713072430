"""Sources of records 0, 1, 2, …: the containers, files and classes that users have.

Imports numpy only, so that workers start quickly.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.property.kinds import kind_of

__all__ = ["DRAWING", "SOURCES", "THREADED", "make"]


class _Own:
    """A class of the user's."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return kind_of(self.kind).one(int(index))


class _Many(_Own):
    """Reads several records at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class _Caching(_Own):
    """Keeps the numbers of the latest records, and counts."""

    def __init__(self, kind: str, count: int) -> None:
        super().__init__(kind, count)
        self.latest: dict[int, int] = {}
        self.reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        if index not in self.latest:
            if len(self.latest) > 3:
                self.latest.pop(next(iter(self.latest)))
            self.latest[index] = int(index)
        return kind_of(self.kind).one(self.latest[index])


class _Filed(_Own):
    """Reads numbers from a file that stays open; unpickled, it opens the file again."""

    def __init__(self, kind: str, count: int, path: Path) -> None:
        super().__init__(kind, count)
        self.path = path
        self.file = open(path, "rb")  # noqa: SIM115 - as users do

    def __reduce__(self) -> Any:
        return _Filed, (self.kind, self.count, self.path)

    def __getitem__(self, index: int) -> Any:
        self.file.seek(8 * int(index))
        return kind_of(self.kind).one(int.from_bytes(self.file.read(8), "little"))

    def close(self) -> None:
        self.file.close()

    __del__ = close


class _SlowlyFiled(_Filed):
    """Waits between finding a record and reading it, where another reader would be in the way."""

    def __reduce__(self) -> Any:
        return _SlowlyFiled, (self.kind, self.count, self.path)

    def __getitem__(self, index: int) -> Any:
        self.file.seek(8 * int(index))
        time.sleep(0.002)
        return kind_of(self.kind).one(int.from_bytes(self.file.read(8), "little"))


class _Lazy:
    """Rows on demand: a shape, a dtype and an index, as an array of h5py or zarr has."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]


class _Drawing(_Own):
    """Draws from the generators of the process for every record."""

    def __getitem__(self, index: int) -> Any:
        drawn = int(np.random.randint(1000)) + random.randrange(1000)
        return kind_of(self.kind).one(int(index) + 100 * drawn)


def _list(kind: str, count: int, folder: Path) -> Any:
    return [kind_of(kind).one(index) for index in range(count)]


def _tuple(kind: str, count: int, folder: Path) -> Any:
    return tuple(_list(kind, count, folder))


def _array(kind: str, count: int, folder: Path) -> Any:
    """All records as one batch: an array, or a tree of arrays."""
    return kind_of(kind).many(range(count))


def _memmap(kind: str, count: int, folder: Path) -> Any:
    path = folder / "array.npy"
    if not path.exists():
        np.save(path, _array(kind, count, folder))
    return np.load(path, mmap_mode="r")


def _file(kind: str, count: int, folder: Path, reader: Callable[..., Any] = _Filed) -> Any:
    path = folder / "numbers"
    if not path.exists():
        path.write_bytes(b"".join(index.to_bytes(8, "little") for index in range(count)))
    return reader(kind, count, path)


def _slow_file(kind: str, count: int, folder: Path) -> Any:
    return _file(kind, count, folder, _SlowlyFiled)


def _lazy(kind: str, count: int, folder: Path) -> Any:
    whole = _array(kind, count, folder)
    if isinstance(whole, dict):
        return {name: _Lazy(array) for name, array in whole.items()}
    return _Lazy(whole)


def _hdf5(kind: str, count: int, folder: Path) -> Any:
    import h5py

    path = folder / "file.h5"
    whole = _array(kind, count, folder)
    named = whole if isinstance(whole, dict) else {"array": whole}
    if not path.exists():
        with h5py.File(path, "w") as file:
            for name, array in named.items():
                file[name] = array
    file = h5py.File(path, "r")
    return {name: file[name] for name in named} if isinstance(whole, dict) else file["array"]


def _pandas(kind: str, count: int, folder: Path) -> Any:
    import pandas

    return pandas.DataFrame(_array(kind, count, folder))


def _polars(kind: str, count: int, folder: Path) -> Any:
    import polars

    return polars.DataFrame(_array(kind, count, folder))


def _arrow(kind: str, count: int, folder: Path) -> Any:
    import pyarrow

    return pyarrow.table(_array(kind, count, folder))


def _of(source: Callable[..., Any]) -> Callable[..., Any]:
    return lambda kind, count, folder: source(kind, count)


_STACKING = ("number", "scalar", "row", "arrays", "columns", "dates", "nested", "text", "bytes")
_ANY = (*_STACKING, "NumPy text", "things", "dataclass", "struct")
_TREES = ("scalar", "row", "arrays", "columns", "dates")
_PLAIN = ("scalar", "row", "arrays", "columns")

# How a source is made, and for which kinds of elements.
SOURCES: dict[str, tuple[Callable[[str, int, Path], Any], tuple[str, ...]]] = {
    "list": (_list, _ANY),
    "tuple": (_tuple, _ANY),
    "array": (_array, _TREES),
    "memmap": (_memmap, ("scalar", "row")),
    "own": (_of(_Own), _ANY),
    "several at once": (_of(_Many), _ANY),
    "caching": (_of(_Caching), _ANY),
    "file": (_file, _ANY),
    "slow file": (_slow_file, ("number", "arrays")),
    "lazy": (_lazy, _PLAIN),
    "hdf5": (_hdf5, _PLAIN),
    "pandas": (_pandas, ("columns",)),
    "polars": (_polars, ("columns",)),
    "arrow": (_arrow, ("columns",)),
    "drawing": (_of(_Drawing), ("number", "arrays", "text")),
}

DRAWING = "drawing"
# What several threads may read.
THREADED = ("list", "array", "memmap", "own", "several at once")


def make(name: str, kind: str, count: int, folder: Path) -> Any:
    """Makes a source; what it keeps on disk goes to a folder of its own, once."""
    return SOURCES[name][0](kind, count, folder)
