"""Calls that end something, made once and not waited for longer than is said."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

__all__ = ["Once", "UnlessClosed", "call_within"]


class Once:
    """A call that is made until it has succeeded, or is under way."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._called = False

    def __call__(self) -> None:
        if not self._called:
            self._called = True
            try:
                self._call()
            except BaseException:
                self._called = False
                raise


def call_within(calls: Sequence[Callable[[], None]], seconds: float) -> None:
    """Calls each in turn, in a thread that is left behind if one of them does not return."""

    def call_all() -> None:
        for call in calls:
            # A generator that is inside its body cannot be closed from outside: nothing more can be
            # done for it, and the next in the list may be what blocks it.
            with contextlib.suppress(Exception):
                call()

    thread = threading.Thread(target=call_all, name="grain_jax close", daemon=True)
    thread.start()
    thread.join(seconds)


class UnlessClosed:
    """Raises `ClosedError`, by `check`, in place of whatever a source raises as it is closed.

    No generator: `contextlib` writes to exceptions, and some refuse that.
    """

    __slots__ = ("_check",)

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def __enter__(self) -> None:
        self._check()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            self._check()
