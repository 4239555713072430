"""Text: files of lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from grain_jax._algebra.files import paths
from grain_jax._algebra.files.source import Contents, corrupt

__all__ = ["TextFiles"]

_EVERY = 256  # lines between two entries of the index


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """How files of lines are read.

    Attributes:
      encoding: of the text, one in which a line ends with the byte 10.
      compression: of the files.
    """

    encoding: str
    compression: str | None
    has_gaps: bool = False
    about: str = ""

    def look(self, path: str) -> Contents:
        """Counts the lines; what is behind the last line end is one, and so is what is damaged."""
        stamp = paths.stamp_of(path)
        compression = paths.compression_of(path, self.compression)
        file = paths.open_file(path, compression)
        begins: list[int] = [0]  # of every so many lines
        count = at = begin = 0
        damage = ""
        try:
            for piece in paths.chunks(file):
                ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == 10) + (at + 1)
                wanted = ends[(-count - 1) % _EVERY :: _EVERY]
                begins += wanted.tolist()
                count, at = count + len(ends), at + len(piece)
                begin = int(ends[-1]) if len(ends) else begin
        except paths.DamagedError as error:
            damage = str(error)
        finally:
            file.close()
        count += bool(damage) or begin < at
        index = None if compression else np.array(begins, np.int64)
        return Contents(count, stamp, (compression, index), damage)

    def open(self, path: str, contents: Contents) -> _Lines:
        """Opens a file."""
        return _Lines(self.encoding, path, contents)


class _Lines:
    """An open file, and lines of it that were read together."""

    def __init__(self, encoding: str, path: str, contents: Contents) -> None:
        self._path, self._encoding = path, encoding
        compression, self._begins = contents.index
        self._file: IO[bytes] = paths.open_file(path, compression)
        self._read = getattr(self._file, "read1", self._file.read)
        self._lines: list[bytes] = []
        self._next = 0  # which of them comes next
        self._rest: list[bytes] = []  # what was read behind them
        self._over = False
        self.following = 0

    def read(self, rows: Sequence[int], found: list[Any]) -> None:
        """Appends the lines, without their ends."""
        encoding = self._encoding
        together = rows[-1] - rows[0] == len(rows) - 1
        done = 0
        while done < len(rows):
            self._go_to(rows[done])
            count = len(rows) - done if together else 1
            lines = self._lines[self._next : self._next + count]
            try:
                found += [line.decode(encoding) for line in lines]
            except UnicodeDecodeError:
                self._find(rows[done], lines, found)
            done += len(lines)
            self._next += len(lines)
            self.following += len(lines)

    def _find(self, row: int, lines: list[bytes], found: list[Any]) -> None:
        """Appends those of lines that can be decoded, and raises for the first that cannot."""
        for number, line in enumerate(lines, row):
            try:
                found.append(line.decode(self._encoding))
            except UnicodeDecodeError as error:
                what = f"the line is no {self._encoding}: {error}"
                raise corrupt(self._path, number, what) from error

    def _go_to(self, row: int) -> None:
        """Has a line in memory as the next one."""
        if row - self.following >= len(self._lines) - self._next and self._begins is not None:
            entry = min(row // _EVERY, len(self._begins) - 1)
            if entry * _EVERY > self.following + len(self._lines) - self._next:
                self._file.seek(int(self._begins[entry]))
                self._lines, self._next, self._rest, self._over = [], 0, [], False
                self.following = entry * _EVERY
        while row - self.following >= (left := len(self._lines) - self._next):
            if self._over:
                raise corrupt(self._path, row, "the file ends before it")
            self.following += left
            self._lines, self._next = [], 0
            self._fill()
        self._next += row - self.following
        self.following = row

    def _fill(self) -> None:
        """Reads until there are lines, or to the end."""
        while not self._lines and not self._over:
            piece = self._read(1 << 16)
            if not piece:
                self._over = True
                last = b"".join(self._rest)
                self._lines, self._rest = ([last.removesuffix(b"\r")] if last else []), []
            elif b"\n" not in piece:
                self._rest.append(piece)
            else:
                *lines, rest = piece.split(b"\n")
                lines[0] = b"".join([*self._rest, lines[0]])
                if b"\r" in piece or lines[0].endswith(b"\r"):
                    lines = [line.removesuffix(b"\r") for line in lines]
                self._lines, self._rest = lines, ([rest] if rest else [])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
