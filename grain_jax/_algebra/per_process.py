"""Readers that cannot be pickled or shared: each process makes its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._values.errors import InvalidTypeError

__all__ = ["PerProcess"]

# What a process was forked with: its finalizer would end a connection that the parent uses.
_inherited: list[Any] = []


class PerProcess:
    """The records of a reader that each process makes for itself, when it first reads.

    For connections, open files, and clients that neither pickle nor may be used in two processes.
    The trainer's process makes one, too, which says how many records there are; each is closed by
    the process that made it, as the loader or its worker ends.

    Args:
      factory: makes a reader, with `__len__` and `__getitem__`, and perhaps `__getitems__` and
        `close`. It goes to workers, so what it holds has to pickle: paths, and not what is open.

    Raises:
      InvalidTypeError: if `factory` is no function, or makes no reader.

    Example:
      >>> import grain_jax as grain
      >>> source = grain.sources.PerProcess(lambda: [10, 20, 30])
      >>> len(source), source[1]
      (3, 20)
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        if not callable(factory):
            raise InvalidTypeError(
                f"PerProcess takes a function that makes a reader, got {factory!r}. Write "
                "PerProcess(lambda: open_reader(path)), say."
            )
        self.factory = factory
        self._made_in = 0
        self._reader: Any = None
        reader = self.reader
        for name in ("__len__", "__getitem__"):
            if not hasattr(type(reader), name):
                raise InvalidTypeError(
                    f"the factory of PerProcess made {reader!r}, which is no reader: it has no "
                    f"{name}."
                )
        if hasattr(type(reader), "__getitems__"):
            self.__class__ = _PerProcessMany

    @property
    def reader(self) -> Any:
        """This process's own."""
        if self._made_in != os.getpid():
            if self._reader is not None:
                _inherited.append(self._reader)
            self._reader = self.factory()
            self._made_in = os.getpid()
        return self._reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> Any:
        return self.reader[index]

    def __repr__(self) -> str:
        name = getattr(self.factory, "__qualname__", type(self.factory).__name__)
        return f"PerProcess({name})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made_in": 0, "_reader": None}

    def close(self) -> None:
        """Closes this process's reader, if it has one and says how; the next read makes another."""
        reader, self._reader = self._reader, None
        if self._made_in != os.getpid():
            _inherited.append(reader)
        elif hasattr(reader, "close"):
            self._made_in = 0
            reader.close()


class _PerProcessMany(PerProcess):
    """The same, of a reader that answers for many records in one call."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self.reader.__getitems__(indices)
