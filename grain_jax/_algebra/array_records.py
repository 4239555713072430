"""Records of array_record files, read with the `array_record` package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from grain_jax._values.errors import (
    ClosedError,
    InvalidValueError,
    MissingDependencyError,
    OutOfRangeError,
)

__all__ = ["ArrayRecordDataSource"]


class ArrayRecordDataSource:
    """The records of array_record files, as `bytes`, numbered through all files in order.

    Args:
      paths: one path, or several. The objects of type `FileInstruction` of TFDS (parts of files)
        work too, and open faster where there are many files.
      reader_options: what array_record's reader takes, such as
        `{"index_storage_option": "offloaded"}`.

    Files are opened when they are first read, by every process for itself; pickling takes none
    along and loading starts no thread. (Making a source of many paths starts some: read in forks of
    a process that has only loaded it.)

    Raises:
      MissingDependencyError: if array_record is not installed.
      FileNotFoundError: if a file is missing.
      InvalidValueError: if there is no path.

    Example:
      >>> source = ArrayRecordDataSource(["a.array_record", "b.array_record"])  # doctest: +SKIP
      >>> len(source), source[0]  # doctest: +SKIP
      (2000, b'...')
    """

    def __init__(
        self,
        paths: Any,
        reader_options: dict[str, str] | None = None,
    ) -> None:
        files = [paths] if _is_one_file(paths) else list(paths)
        if not files:
            raise InvalidValueError(
                "ArrayRecordDataSource was given no paths; does the pattern match a file?"
            )
        self._files: list[Any] = [os.fspath(f) if isinstance(f, os.PathLike) else f for f in files]
        self._source = _open(self._files, reader_options)
        self._closed = False

    @property
    def paths(self) -> list[str]:
        """The files, in order."""
        return [f if isinstance(f, str) else f.filename for f in self._files]

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, record_key: int) -> bytes:
        source = self._reader()
        self._check(record_key)
        record: bytes = source[record_key]
        return record

    def __getitems__(self, record_keys: Sequence[int]) -> Sequence[bytes]:
        """The records of these keys, in their order."""
        source = self._reader()
        for key in record_keys:
            self._check(key)
        records: Sequence[bytes] = source.__getitems__(record_keys)
        return records

    def __repr__(self) -> str:
        return repr(self._source)

    def close(self) -> None:
        """Closes the files."""
        self._closed = True
        self._source.__exit__(None, None, None)

    def __enter__(self) -> ArrayRecordDataSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(self) -> Any:
        if self._closed:
            raise ClosedError(f"{self!r} was read after close(); make a new source.")
        return self._source

    def _check(self, key: int) -> None:
        if not 0 <= key < len(self):
            raise OutOfRangeError(
                f"record key {key} is outside {self!r}: its keys are 0 to {len(self) - 1}."
            )


def _is_one_file(paths: Any) -> bool:
    return isinstance(paths, str | os.PathLike) or hasattr(paths, "filename")


def _open(files: list[Any], reader_options: dict[str, str] | None) -> Any:
    try:
        from array_record.python import array_record_data_source
    except ImportError as error:
        raise MissingDependencyError(
            "reading array_record files needs the array_record package: "
            'pip install "grain-jax[array_record]"'
        ) from error
    try:
        return array_record_data_source.ArrayRecordDataSource(files, reader_options)
    except RuntimeError as error:
        missing = [f for f in files if isinstance(f, str) and "://" not in f and not _exists(f)]
        if missing:
            raise FileNotFoundError(
                f"there is no array_record file {missing[0]!r} (and {len(missing) - 1} more of the "
                f"{len(files)} given are missing)."
            ) from error
        raise


def _exists(path: str) -> bool:
    return os.path.exists(path)
