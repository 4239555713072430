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
_DELTA = 0xA282EAD8  # what a checksum is masked with
_TOGETHER = 1 << 15  # bytes that are read at once where records are small
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
    return _length_in(head, 0) if head else None


def _length_in(data: bytes, at: int) -> int:
    """Returns the length of the record that begins there."""
    if len(data) - at < _HEAD.size:
        left = len(data) - at
        raise _Damage(
            f"the file ends {left} bytes after the record's start"
            if left
            else "the file ends before it"
        )
    length: int
    length, expected = _HEAD.unpack_from(data, at)
    if checksums.masked(data[at : at + 8]) != expected:
        raise _Damage("its length and the length's checksum do not agree")
    return length


class _Records:
    """An open file, and some of its bytes, in front of the record that comes next."""

    def __init__(self, format: TFRecordFiles, path: str, contents: Contents) -> None:
        self._path = path
        self._decode = format.decode
        self._check = format.check
        compression, self._offsets = contents.index
        self._file = paths.open_file(path, compression)
        self._ready = b""
        self._at = 0  # how many of these bytes are done with
        self._most = _TOGETHER
        self.following = 0

    def read(self, rows: Sequence[int], found: list[Any]) -> None:
        """Appends the records, decoded."""
        decode, check, checksum = self._decode, self._check, checksums.function()
        row = rows[0]
        try:
            for row in rows:
                if row != self.following:
                    self._go_to(row)
                length = self._length()
                begin = self._at + _HEAD.size
                end = begin + length
                if end + _TAIL.size <= len(self._ready):
                    data = self._ready[begin:end]
                    (expected,) = _TAIL.unpack_from(self._ready, end)
                    self._at = end + _TAIL.size
                else:
                    data, expected = self._long(begin, length)
                self.following += 1
                if check:
                    value = checksum(data)
                    if (((value >> 15) | (value << 17)) + _DELTA) & 0xFFFFFFFF != expected:
                        raise _Damage("its bytes and their checksum do not agree")
                found.append(data if decode is None else decode(data))
        except (_Damage, paths.DamagedError, MalformedError) as error:
            raise corrupt(self._path, row, str(error)) from None

    def _length(self) -> int:
        """Returns the length of the record that comes next."""
        missing = _HEAD.size - (len(self._ready) - self._at)
        if missing > 0:
            self._ready = self._ready[self._at :] + paths.read_some(self._file, missing, self._most)
            self._at = 0
        return _length_in(self._ready, self._at)

    def _long(self, begin: int, length: int) -> tuple[bytes, int]:
        """Returns a record that is not all there, and its checksum."""
        whole = length + _TAIL.size
        # What is long is not read together with what is behind it, which would be copied again.
        self._most = _TOGETHER if length < _TOGETHER else 0
        missing = whole - (len(self._ready) - begin)
        data = self._ready[begin:] + paths.read_some(self._file, missing, self._most)
        if len(data) < whole:
            raise _Damage(_cut_off(length, len(data)))
        self._ready, self._at = data, whole
        return data[:length], _TAIL.unpack_from(data, length)[0]

    def _go_to(self, row: int) -> None:
        offsets = self._offsets
        entry = row // _EVERY
        if offsets is not None and entry * _EVERY > self.following and entry < len(offsets):
            self._file.seek(int(offsets[entry]))
            self._ready, self._at = b"", 0
            self.following = entry * _EVERY
        while self.following < row:
            self._at += _HEAD.size + self._length() + _TAIL.size
            if self._at > len(self._ready):
                self._file.seek(self._at - len(self._ready), 1)
                self._ready, self._at = b"", 0
            self.following += 1

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
