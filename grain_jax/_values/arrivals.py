"""What has been unpickled in this process, to be closed if the loading is cut short."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["close", "forget", "note", "watch"]

_closes: list[Callable[[], None]] | None = None  # None: nobody asks


def watch() -> None:
    """Begins to note what arrives."""
    global _closes
    _closes = []


def note(close: Callable[[], None]) -> None:
    """Takes how something is closed that has arrived."""
    if _closes is not None:
        _closes.append(close)


def forget() -> None:
    """Lets go of what has arrived, which somebody else closes from now on."""
    global _closes
    _closes = None


def close() -> None:
    """Closes what has arrived; one that cannot be closed leaves the others to be.

    Raises:
      BaseException: the first that any of them raised.
    """
    closes = _closes or []
    forget()
    first: BaseException | None = None
    for one in closes:
        try:
            one()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
