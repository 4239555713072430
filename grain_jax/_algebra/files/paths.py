"""Paths: files named by paths, patterns and lists, on this machine or on another file system."""

from __future__ import annotations

import bz2
import contextlib
import glob
import importlib
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, cast

from grain_jax._values.errors import InvalidTypeError, InvalidValueError, MissingDependencyError

__all__ = [
    "COMPRESSIONS",
    "DamagedError",
    "check_compression",
    "chunks",
    "compression_of",
    "expand",
    "open_file",
    "read_some",
    "stamp_of",
]

COMPRESSIONS = ("auto", None, "gzip", "zlib", "bz2", "xz", "zstd")

_CHUNK = 1 << 20

_GZIP = 16 + zlib.MAX_WBITS
"""What zlib calls gzip's form."""

_MAGIC = ((b"\x1f\x8b\x08", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"))


def expand(path: Any) -> tuple[str, ...]:
    """Returns the files that a path, a pattern, or a sequence of these names; patterns sorted.

    Args:
      path: text, anything with `__fspath__`, or a sequence of them. What has `*`, `?` or `[` in it
        is a pattern, unless a file has just that name. With a protocol (`gs://`, `memory://`) it is
        opened with fsspec, or with `etils.epath` where fsspec does not know it.

    Raises:
      InvalidTypeError: for what is no path.
      InvalidValueError: for an empty sequence.
      FileNotFoundError: for a file that is not there, or a pattern that no file fits.
    """
    given = [path] if isinstance(path, (str, os.PathLike)) else path
    if isinstance(given, bytes) or not isinstance(given, Sequence):
        raise InvalidTypeError(
            f"a path is text, an os.PathLike or a sequence of them, got {path!r}."
        )
    if not given:
        raise InvalidValueError("no files were given: the sequence of paths is empty.")
    return tuple(found for one in given for found in _expand(one))


def _expand(path: Any) -> Sequence[str]:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidTypeError(f"a path is text or an os.PathLike, got {path!r}.")
    text = text.removeprefix("file://")
    if _is_folder(text):
        raise InvalidValueError(
            f"{text!r} is a folder; write a pattern for its files: {os.path.join(text, '*')!r}."
        )
    if _exists(text):
        return [text]
    if not any(mark in text for mark in "*?["):
        raise FileNotFoundError(f"there is no file {text!r}.")
    found = [one for one in sorted(_glob(text)) if not _is_folder(one)]
    if not found:
        raise FileNotFoundError(f"no file fits the pattern {text!r}.")
    return found


def _is_remote(path: str) -> bool:
    return "://" in path


def _file_system(path: str) -> tuple[Any, str] | None:
    """Returns the file system of fsspec for a path, and what it calls the path; None without."""
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError:
        return None
    protocol = path.partition("://")[0]
    if protocol not in fsspec.available_protocols():
        return None
    try:
        system, name = fsspec.url_to_fs(path)
    except ImportError:
        return None  # the package for that protocol is not there
    return system, name


def _epath(path: str) -> Any:
    epath: Any = importlib.import_module("etils.epath")
    try:
        return epath.Path(path)
    except KeyError:
        protocol = path.partition("://")[0]
        raise MissingDependencyError(
            f"{path!r} cannot be opened: neither fsspec nor etils.epath has a file system for "
            f"{protocol}://. Install fsspec and its package for it: "
            f'pip install "fsspec[{protocol}]"'
        ) from None


def _exists(path: str) -> bool:
    if not _is_remote(path):
        return os.path.exists(path)
    known = _file_system(path)
    return bool(_epath(path).exists() if known is None else known[0].exists(known[1]))


def _is_folder(path: str) -> bool:
    return not _is_remote(path) and os.path.isdir(path)


def _glob(path: str) -> list[str]:
    if not _is_remote(path):
        return glob.glob(path, recursive=True)
    known = _file_system(path)
    if known is None:
        folder, name = path.rsplit("/", 1)
        return [os.fspath(one) for one in _epath(folder).glob(name)]
    system, name = known
    protocol = path.partition("://")[0]
    entries = system.glob(name, detail=True)
    names = [one for one, about in entries.items() if about.get("type") != "directory"]
    return [f"{protocol}://{one.lstrip('/') if protocol == 'memory' else one}" for one in names]


def stamp_of(path: str) -> tuple[int, int]:
    """Returns how many bytes a file has, and when it was written: in nanoseconds, 0 if not here.

    Raises:
      FileNotFoundError: if it is not there.
    """
    if not _is_remote(path):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    known = _file_system(path)
    size = _epath(path).stat().length if known is None else known[0].size(known[1])
    return int(size), 0


def _open_raw(path: str) -> IO[bytes]:
    if not _is_remote(path):
        return open(path, "rb", buffering=1 << 18)
    known = _file_system(path)
    opened: IO[bytes]
    opened = _epath(path).open("rb") if known is None else known[0].open(known[1], "rb")
    if isinstance(opened, io.BytesIO):
        # fsspec's files in memory are the same object, with one position, for all who open them.
        return io.BytesIO(opened.getvalue())
    return opened


def open_file(path: str, compression: str | None = None) -> IO[bytes]:
    """Opens a file for reading; the bytes that are read are not compressed."""
    file = _open_raw(path)
    try:
        return _decompressed(file, path, compression)
    except BaseException:
        file.close()
        raise


def _decompressed(file: IO[bytes], path: str, compression: str | None) -> IO[bytes]:
    opened: Any
    if compression is None:
        return file
    if compression == "gzip":
        opened = _Inflated(file, _GZIP)
    elif compression == "bz2":
        opened = bz2.BZ2File(file)
    elif compression == "xz":
        opened = lzma.LZMAFile(file)  # noqa: SIM115
    elif compression == "zlib":
        opened = _Inflated(file, zlib.MAX_WBITS)
    else:
        opened = _zstd(file, path)
    owning: Any = _Owning(opened, file)
    return cast(IO[bytes], owning)


class DamagedError(Exception):
    """What is compressed cannot be decompressed."""


class _Owning:
    """A file that is read through another one; closing it closes both."""

    def __init__(self, opened: Any, below: IO[bytes]) -> None:
        self._opened, self._below = opened, below

    def read(self, count: int) -> bytes:
        data: bytes = _sound(self._opened.read, count)
        return data

    def read1(self, count: int) -> bytes:
        """Reads what comes of itself: all that is sound comes before what is damaged."""
        data: bytes = _sound(self._opened.read1, count)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Goes on elsewhere: what lies between is read."""
        place: int = _sound(self._opened.seek, offset, whence)
        return place

    def close(self) -> None:
        self._opened.close()
        self._below.close()


def _sound(call: Callable[..., Any], *args: int) -> Any:
    try:
        return call(*args)
    except OSError as error:
        if error.errno is not None:
            raise  # of the file below: a disk, a network
        raise DamagedError(f"it cannot be decompressed: {error}") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DamagedError(f"it cannot be decompressed: {error}") from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise DamagedError(f"it cannot be decompressed: {error}") from error


class _Inflated:
    """A gzip file, or a zlib stream, as TFRecord files may be.

    What is sound comes before an error, and an error comes again: `gzip` of Python 3.12 and newer
    loses what it has of a file that is cut off.
    """

    def __init__(self, file: IO[bytes], form: int) -> None:
        self._file = file
        self._form = form
        self._start()

    def _start(self) -> None:
        self._inflate = zlib.decompressobj(self._form)
        self._given = self._ready = b""
        self._error: zlib.error | None = None
        self._at = 0

    def read(self, count: int) -> bytes:
        parts = []
        while count > 0 and (part := self.read1(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def read1(self, count: int) -> bytes:
        self._ready = self._ready or self._more()
        part, self._ready = self._ready[:count], self._ready[count:]
        self._at += len(part)
        return part

    def _more(self) -> bytes:
        """Returns some bytes; none at the end."""
        while not self._inflate.eof or self._begins_anew():
            if self._error is not None:
                raise zlib.error(*self._error.args)
            given = self._inflate.unconsumed_tail or self._given or self._file.read(_CHUNK)
            self._given = b""
            made = self._inflated(given)
            if made:
                return made
            if not given:
                raise EOFError("the compressed stream ends before its end marker")
        return b""

    def _inflated(self, given: bytes) -> bytes:
        """Returns what some bytes are, of damaged ones what comes before the damage."""
        before = self._inflate.copy()
        try:
            return self._inflate.decompress(given, _CHUNK)
        except zlib.error as error:
            self._error = error
        sound = []
        with contextlib.suppress(zlib.error):
            while made := before.decompress(given, 1):
                given = before.unconsumed_tail
                sound.append(made)
        return b"".join(sound)

    def _begins_anew(self) -> bool:
        """Whether another member of a gzip file follows, behind zeros."""
        if self._form != _GZIP:
            return False
        rest = self._inflate.unused_data.lstrip(b"\0")
        while not rest and (given := self._file.read(_CHUNK)):
            rest = given.lstrip(b"\0")
        if rest:
            self._inflate, self._given = zlib.decompressobj(_GZIP), rest
        return bool(rest)

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset + (self._at if whence == 1 else 0)
        if target < self._at:
            self._file.seek(0)
            self._start()
        while self._at < target and self.read(min(_CHUNK, target - self._at)):
            pass
        return self._at

    def close(self) -> None:
        self._ready = b""


def _zstd(file: IO[bytes], path: str) -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        return module.open(file, "rb")
    raise MissingDependencyError(
        f"{path!r} is compressed with zstd, which Python reads from 3.14 on: "
        "pip install backports.zstd"
    )


def check_compression(given: Any) -> str | None:
    """Returns a compression that was given.

    Raises:
      InvalidValueError: if there is no such one.
    """
    if given not in COMPRESSIONS:
        raise InvalidValueError(
            f"compression={given!r} is not known; it is one of "
            f"{', '.join(map(repr, COMPRESSIONS))}."
        )
    chosen: str | None = given
    return chosen


def compression_of(path: str, given: str | None) -> str | None:
    """Returns how a file is compressed: as it is said, or for "auto" as its first bytes say."""
    if given != "auto":
        return given
    file = _open_raw(path)
    try:
        head = file.read(16)
    finally:
        file.close()
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    return "bz2" if head[:3] == b"BZh" and head[4:10] == b"1AY&SY" else None


def read_some(file: IO[bytes], least: int, most: int) -> bytes:
    """Reads some bytes: fewer than `least` only at the end, and more where they come of themselves.

    Bytes in front of a damage are read without it.
    """
    read = getattr(file, "read1", file.read)
    parts = []
    while least > 0 and (piece := read(max(least, most))):
        parts.append(piece)
        least -= len(piece)
    return b"".join(parts)


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yields what a file has from where it stands, in pieces; all that is sound before an error."""
    read = getattr(file, "read1", file.read)
    while piece := read(_CHUNK):
        yield piece
