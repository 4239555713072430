"""TFRecord: files of records, each with its length before it and checksums of both."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

from grain_jax._algebra.files import checksums, paths
from grain_jax._algebra.files.examples import MalformedError
from grain_jax._algebra.files.source import Contents, corrupt

__all__ = ["TFRecordFiles"]

_HEAD = struct.Struct("<QI")  # length, and its checksum
_TAIL = struct.Struct("<I")  # the record's checksum
_EVERY = 64  # records between two entries of the index


@dataclasses.dataclass(frozen=True)
class TFRecordFiles:
    """How TFRecord files are read.

    Attributes:
      decode: makes an element of the bytes of a record; None leaves them as they are.
      compression: of the files.
      check: whether the checksums of records are compared.
    """

    decode: Callable[[bytes], Any] | None
    compression: str | None
    check: bool = True
    has_gaps: bool = False
    about: str = ""

    def look(self, path: str) -> Contents:
        """Counts the records by their lengths; a damaged one is the last."""
        stamp = paths.stamp_of(path)
        compression = self._compression(path)
        file = paths.open_file(path, compression)
        offsets: list[int] = []
        damage = ""
        count = at = 0
        within = False  # a record that is counted
        try:
            while (length := _next_length(file)) is not None:
                if count % _EVERY == 0:
                    offsets.append(at)
                at += _HEAD.size + length + _TAIL.size
                count += 1
                if compression is None and at > stamp[0]:
                    damage = _cut_off(length, stamp[0] - at + length + _TAIL.size)
                    break
                within = True
                file.seek(at)
                within = False
        except paths.DamagedError as error:
            damage, count = str(error), count + (not within)
        except _Damage as error:
            damage, count = str(error), count + 1
        finally:
            file.close()
        index = None if compression else np.array(offsets, np.int64)
        return Contents(count, stamp, (compression, index), damage)

    def _compression(self, path: str) -> str | None:
        if self.compression != "auto":
            return self.compression
        # A length may begin as a compressed file does; its checksum tells the two apart.
        file = paths.open_file(path)
        try:
            if _next_length(file) is not None:
                return None
        except _Damage:
            pass
        finally:
            file.close()
        return paths.compression_of(path, "auto")

    def open(self, path: str, contents: Contents) -> _Records:
        """Opens a file."""
        return _Records(self, path, contents)


class _Damage(Exception):
    """What is wrong with a record."""


def _cut_off(length: int, found: int) -> str:
    return (
        f"the file is cut off: the record has {length} bytes and a checksum, and the file ends "
        f"{found} bytes after the record's length"
    )


def _next_length(file: IO[bytes]) -> int | None:
    """Returns the length of the record that a file stands before; None at its end."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        if not head:
            return None
        raise _Damage(f"the file ends {len(head)} bytes after the record's start")
    length, checksum = _HEAD.unpack(head)
    if checksums.masked(head[:8]) != checksum:
        raise _Damage("its length and the length's checksum do not agree")
    return int(length)


class _Records:
    """An open file, and the record that it stands before."""

    def __init__(self, format: TFRecordFiles, path: str, contents: Contents) -> None:
        self._path = path
        self._decode = format.decode
        self._check = format.check
        compression, self._offsets = contents.index
        self._file = paths.open_file(path, compression)
        self.following = 0

    def read(self, rows: Sequence[int], found: list[Any]) -> None:
        """Appends the records, decoded."""
        decode = self._decode
        row = rows[0]
        try:
            for row in rows:
                data = self._raw(row)
                found.append(data if decode is None else decode(data))
        except (_Damage, paths.DamagedError, MalformedError) as error:
            raise corrupt(self._path, row, str(error)) from None

    def _raw(self, row: int) -> bytes:
        offsets = self._offsets
        entry = row // _EVERY
        if offsets is not None and entry * _EVERY > self.following and entry < len(offsets):
            self._file.seek(int(offsets[entry]))
            self.following = entry * _EVERY
        while self.following < row:
            length = self._length()
            self._file.seek(length + _TAIL.size, 1)
            self.following += 1
        length = self._length()
        data = self._file.read(length)
        tail = self._file.read(_TAIL.size)
        if len(data) < length or len(tail) < _TAIL.size:
            raise _Damage(_cut_off(length, len(data) + len(tail)))
        self.following += 1
        if self._check and checksums.masked(data) != _TAIL.unpack(tail)[0]:
            raise _Damage("its bytes and their checksum do not agree")
        return data

    def _length(self) -> int:
        length = _next_length(self._file)
        if length is None:
            raise _Damage("the file ends before it")
        return length

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
