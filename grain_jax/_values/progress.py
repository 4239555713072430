"""What this process is doing, for whoever asks about a worker that does not answer, or for times.

Each step and each read tells that it begins. Where this thread has a clock, the time from one of
these to the next counts for the first; without a clock nothing more is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from grain_jax._values.clock import here

__all__ = ["at", "count", "forget", "listen", "told"]

_Where = Callable[[], str]

_listener: Callable[[str], None] | None = None
_now: tuple[int, str, _Where | None] = (0, "", None)


def listen(listener: Callable[[str], None] | None) -> None:
    """Has `listener` told about every step that begins; None for nobody."""
    global _listener
    _listener = listener


def at(what: str, where: _Where | None = None, elements: int = 0) -> None:
    """Tells that a step begins.

    Args:
      what: the title of the step.
      where: can be asked at which record it is.
      elements: how many it acts on; 0 where somebody else has said that.
    """
    global _now
    if _listener is not None:
        _now = (_now[0] + 1, what, where)
        _listener(what)
    clock = here.clock
    if clock is not None:
        now = time.perf_counter()
        clock.cost[1] += now - clock.begin
        clock.begin = now
        cost = clock.costs.get(what)
        if cost is None:
            cost = clock.costs[what] = [0, 0.0, 0, 0, 0]
        clock.cost = cost
        if clock.annotate is not None:
            if clock.annotation is not None:
                clock.annotation.__exit__(None, None, None)
            clock.annotation = clock.annotate(f"grain_jax: {what}")
            clock.annotation.__enter__()
        if elements:
            cost[0] += 1
            cost[2] += elements


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
