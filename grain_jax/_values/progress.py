"""What this process is doing, for whoever asks about a worker that does not answer."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["at", "listen"]

_listener: Callable[[str], None] | None = None


def listen(listener: Callable[[str], None] | None) -> None:
    """Has `listener` told about every step that begins; None for nobody."""
    global _listener
    _listener = listener


def at(what: str) -> None:
    """Tells that a step begins."""
    if _listener is not None:
        _listener(what)
