"""What this process is doing, for whoever asks about a worker that does not answer."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["at", "count", "forget", "listen", "told"]

_Where = Callable[[], str]

_listener: Callable[[str], None] | None = None
_now: tuple[int, str, _Where | None] = (0, "", None)


def listen(listener: Callable[[str], None] | None) -> None:
    """Has `listener` told about every step that begins; None for nobody."""
    global _listener
    _listener = listener


def at(what: str, where: _Where | None = None) -> None:
    """Tells that a step begins; `where` can be asked at which record it is."""
    global _now
    if _listener is not None:
        _now = (_now[0] + 1, what, where)
        _listener(what)


def forget() -> None:
    """Lets go of the records."""
    global _now
    _now = (_now[0] + 1, "", None)


def count() -> int:
    """Returns a number that changes with every step that begins or ends."""
    return _now[0]


def told() -> str:
    """Returns what this process is at, and at which record; from any thread."""
    _, what, where = _now
    return what if where is None else f"{what}, at {where()}"
