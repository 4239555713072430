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
    """An open file, and the line that it stands before."""

    def __init__(self, encoding: str, path: str, contents: Contents) -> None:
        self._path, self._encoding = path, encoding
        compression, self._begins = contents.index
        self._file: IO[bytes] = paths.open_file(path, compression)
        self._lines: list[bytes] = []  # whole ones that were read, the next one last
        self._rest: list[bytes] = []  # what was read behind them
        self._read = getattr(self._file, "read1", self._file.read)
        self._over = False
        self.following = 0

    def read(self, rows: Sequence[int], found: list[Any]) -> None:
        """Appends the lines, without their ends."""
        encoding = self._encoding
        for row in rows:
            self._go_to(row)
            if not self._lines:
                raise corrupt(self._path, row, "the file ends before it")
            self.following += 1
            line = self._lines.pop().removesuffix(b"\r")
            try:
                found.append(line.decode(encoding))
            except UnicodeDecodeError as error:
                raise corrupt(self._path, row, f"the line is no {encoding}: {error}") from error

    def _go_to(self, row: int) -> None:
        missing = row - self.following
        if missing >= len(self._lines) and self._begins is not None:
            entry = min(row // _EVERY, len(self._begins) - 1)
            if entry * _EVERY > self.following + len(self._lines):
                self._file.seek(int(self._begins[entry]))
                self._lines, self._rest, self._over = [], [], False
                self.following = entry * _EVERY
        while (missing := row - self.following) >= len(self._lines) and not self._over:
            self.following += len(self._lines)
            self._lines.clear()
            self._fill()
        skipped = min(missing, len(self._lines))
        if skipped:
            del self._lines[-skipped:]
            self.following += skipped

    def _fill(self) -> None:
        """Reads until there are lines, or to the end."""
        while not self._lines and not self._over:
            piece = self._read(1 << 16)
            if not piece:
                self._over = True
                last = b"".join(self._rest)
                self._rest = []
                if last:
                    self._lines = [last]
                return
            if b"\n" not in piece:
                self._rest.append(piece)
                continue
            *lines, rest = piece.split(b"\n")
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest = [rest] if rest else []
            self._lines = lines[::-1]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
