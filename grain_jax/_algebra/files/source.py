"""Source: the records of files as one data source, in the order in which the files take turns."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from grain_jax._algebra import access
from grain_jax._algebra.access import Keys
from grain_jax._algebra.files import paths
from grain_jax._algebra.files.interleave import Interleave
from grain_jax._algebra.guard import SOURCE, Guard
from grain_jax._algebra.refills import Refills
from grain_jax._values.errors import CorruptFileError

__all__ = ["Contents", "Damage", "FileSource", "Format", "Records", "check_stamp", "corrupt"]

_MORE_OPEN = 4  # files than twice those that have places, as a source may be read at two positions
_LOOKING_THREADS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What is known of a file after it was looked at.

    Attributes:
      count: its records, with one for a damage behind which nothing can be found.
      stamp: how many bytes it has, and when it was written.
      index: what a reader needs to find records.
      damage: what is wrong with the last of the records; empty if nothing.
    """

    count: int
    stamp: tuple[int, int]
    index: Any = None
    damage: str = ""


class Damage(Exception):
    """Records of a file that cannot be read, one behind the other.

    Attributes:
      row: the first of them.
      end: the first one behind them.
      what: is wrong.
    """

    def __init__(self, row: int, end: int, what: str) -> None:
        super().__init__(what)
        self.row, self.end, self.what = row, end, what


class Records(Protocol):
    """An open file."""

    following: int
    """From this record on reading need not go back."""

    def read(self, rows: Sequence[int], found: list[Any]) -> None:
        """Appends records, None for one that is absent; rows ascend.

        Where a record fails, those before it have been appended.
        """

    def close(self) -> None:
        """Closes the file."""


class Format(Protocol):
    """How files of a kind are counted and read: data, which travels to workers."""

    @property
    def has_gaps(self) -> bool:
        """Whether records may be absent."""

    @property
    def about(self) -> str:
        """What of it changes which records there are."""

    def look(self, path: str) -> Contents:
        """Counts the records of a file."""

    def open(self, path: str, contents: Contents) -> Records:
        """Opens a file for reading."""


class FileSource(access.Source):
    """The records of files. They are looked at when the first iteration begins, and once.

    Args:
      given: what reads them.
      names: the files.
      places: how many take turns.
      contents: what is known of them.
    """

    def __init__(
        self,
        given: Format,
        names: Sequence[str],
        places: int,
        contents: dict[str, Contents] | None = None,
    ) -> None:
        self.given: Any = given
        self.names = tuple(names)
        self.places = places
        self.get = self._get
        self.get_many = self._get_many
        self.guard = Guard(SOURCE, False)
        self.refills = Refills()
        # Shared with snapshots: each iteration has its own, and what was looked at stays known.
        self._contents: dict[str, Contents] = {} if contents is None else contents
        self._order: Interleave | None = None
        self._open: collections.OrderedDict[tuple[int, int], Records]
        self._open = collections.OrderedDict()
        self._opened = 0
        self._damaged: dict[int, list[tuple[int, int, str]]] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.given, self.names, self.places, self._contents)

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self._shut()

    def snapshot(self) -> access.Source:
        """The same files; that none has changed its length is checked as it is opened."""
        return FileSource(self.given, self.names, self.places, self._contents)

    @property
    def has_gaps(self) -> bool:  # type: ignore[override]
        """What the format says."""
        return bool(self.given.has_gaps)

    @property
    def length(self) -> int:  # type: ignore[override]
        """Records of all files."""
        return self._ordered().length

    @property
    def order(self) -> Sequence[str]:  # type: ignore[override]
        """What fixes which records come in which order."""
        self._ordered()
        counts = [self._contents[name].count for name in self.names]
        text = f"files(count={len(counts)}, cycle_length={self.places}"
        text += f", records={_digest(counts)}" if len(counts) > 1 else ""
        return [text + (f", {self.given.about})" if self.given.about else ")")]

    @property
    def description(self) -> str:
        """The kind of files and how many there are."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return f"{access.describe(self.given)} {self.names[0]!r}{more}"

    @property
    def has_batches(self) -> bool:
        return False

    def code(self) -> list[Any]:
        return []

    @property
    def closes(self) -> bool:
        """Files are opened where they are read, and closed there."""
        return True

    def close(self) -> None:
        """Closes the files that are open; what is read later opens them again."""
        with self._lock:
            self._shut()

    def whence(self, key: int) -> str:
        """Says in words which record of which file a key is of."""
        file, row = self._ordered().one(key)
        return f"record {row} of {self.names[file]!r}"

    def read(self, keys: Keys) -> list[Any]:
        """Reads each file's records in order."""
        self.check(keys)
        if not len(keys):
            return []
        files, rows = self._ordered().at(keys)
        found: list[Any] = [None] * len(keys)
        failures: list[tuple[int, BaseException]] = []
        with self._lock:
            if self._process != os.getpid():
                # A fork shares the places in open files with the process that it is a copy of.
                self._shut()
                self._process = os.getpid()
            for file in sorted(set(files.tolist())):
                places = np.flatnonzero(files == file)
                self._read_file(file, places.tolist(), rows[places].tolist(), found, failures)
        if failures:
            place, error = min(failures, key=lambda failure: failure[0])
            access.mark_failure(error, self, place, keys.tolist())
            raise error
        return found

    def _read_file(
        self,
        file: int,
        places: list[int],
        rows: list[int],
        found: list[Any],
        failures: list[tuple[int, BaseException]],
    ) -> None:
        """Reads records of one file until one fails."""
        if rows != sorted(rows):
            for place, row in zip(places, rows, strict=True):
                self._read_file(file, [place], [row], found, failures)
            return
        got: list[Any] = []
        known = self._contents[self.names[file]]
        sound, what = self._sound(file, rows)
        try:
            if sound:
                self._reader(file, rows[0]).read(rows[:sound], got)
            if rows[-1] == known.count - 1:
                self._finish(file)
            if sound < len(rows):
                raise corrupt(self.names[file], rows[sound], what)
        except Damage as error:
            # Looked for anew for each record behind it, it would take the square of their number.
            self._damaged.setdefault(file, []).append((error.row, error.end, error.what))
            failures.append((places[len(got)], corrupt(self.names[file], error.row, error.what)))
            self._finish(file)
        except BaseException as error:
            failures.append((places[len(got)], error))
            self._finish(file)
        for place, record in zip(places, got, strict=False):
            found[place] = record

    def _reader(self, file: int, row: int) -> Records:
        """Returns an open file that need not go back for a record, the nearest one of several."""
        best = None
        for number, records in self._open.items():
            if (
                number[0] == file
                and records.following <= row
                and (best is None or records.following > self._open[best].following)
            ):
                best = number
        if best is None:
            while len(self._open) >= 2 * self.places + _MORE_OPEN:
                self._open.popitem(last=False)[1].close()
            name = self.names[file]
            known = self._contents[name]
            check_stamp(name, known.stamp)
            best = file, self._opened
            self._opened += 1
            self._open[best] = self.given.open(name, known)
        self._open.move_to_end(best)
        return self._open[best]

    def _sound(self, file: int, rows: list[int]) -> tuple[int, str]:
        """Returns how many rows come before the first one that is known to be damaged, and how."""
        known = self._contents[self.names[file]]
        damaged = list(self._damaged.get(file, ()))
        if known.damage:
            damaged.append((known.count - 1, known.count, known.damage))
        found = len(rows), ""
        for begin, end, what in damaged:
            first = bisect.bisect_left(rows, begin)
            if first < found[0] and rows[first] < end:
                found = first, what
        return found

    def _finish(self, file: int) -> None:
        for number in [one for one in self._open if one[0] == file]:
            self._open.pop(number).close()

    def _shut(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _get(self, key: int) -> Any:
        return self.read(np.array([key], np.int64))[0]

    def _get_many(self, keys: list[int]) -> Sequence[Any]:
        return self.read(np.array(keys, np.int64))

    def _ordered(self) -> Interleave:
        if self._order is None:
            for name in set(self.names) & set(self._contents):
                check_stamp(name, self._contents[name].stamp)
            unknown = [name for name in dict.fromkeys(self.names) if name not in self._contents]
            self._contents.update(zip(unknown, _looked(self.given.look, unknown), strict=True))
            counts = [self._contents[name].count for name in self.names]
            self._order = Interleave(counts, self.places)
        return self._order


def _looked(look: Callable[[str], Contents], names: list[str]) -> list[Contents]:
    if len(names) < 2:
        return list(map(look, names))
    with ThreadPoolExecutor(min(len(names), _LOOKING_THREADS)) as pool:
        return list(pool.map(look, names))


def corrupt(name: str, row: int, what: str) -> CorruptFileError:
    """Returns the error for a record of a file that is damaged."""
    return CorruptFileError(f"record {row} of the file {name!r}: {what}.")


def _digest(values: Sequence[Any]) -> str:
    return f"{zlib.crc32(repr(values).encode()):08x}"


def check_stamp(name: str, stamp: tuple[int, int]) -> None:
    """Checks that a file is as it was when it was looked at.

    Raises:
      CorruptFileError: if it is not.
    """
    found = paths.stamp_of(name)
    if found == stamp:
        return
    has = (
        f" has {found[0]} bytes, and had {stamp[0]}"
        if found[0] != stamp[0]
        else " is not as it was"
    )
    raise CorruptFileError(
        f"the file {name!r}{has} when its records were counted: it was written to since. Make the "
        "dataset anew; states of the one before do not fit."
    )
