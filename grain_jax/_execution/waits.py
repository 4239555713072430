"""Waits: when the training loop asked for elements, and when it had them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._execution.meter import Meter, shared
from grain_jax._execution.ownership import Owned
from grain_jax._values import clock, errors
from grain_jax._values.stats import Stats, StepStats

__all__ = ["Converting", "Reading", "Waits", "summary", "unmeasured"]

_LOGGED = 60.0
"""Seconds from one table in the log to the next."""

_AT_ONCE = 1e-3
"""Seconds within which an element comes that was there when it was asked for."""

_SPANS = 4096
_WEIGHED = 16

_logger = logging.getLogger("grain_jax")


class Waits:
    """Counts the time in `next()`, and the time between.

    Attributes:
      began: when the first element was asked for, in seconds of `time.monotonic`; None before.
      elements: how many were delivered.
      waited: seconds in `next()`.
      computed: seconds from an element to the next question.
      ready: how many elements were there when asked for.
      spans: of the latest elements, when it was asked for and when it came.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        self.elements = self.ready = 0
        self.waited = self.computed = 0.0
        self.spans: deque[tuple[float, float]] = deque(maxlen=_SPANS)
        self._asked: float | None = None
        self._had: float | None = None
        self._logged = 0.0
        self._annotation: Any = None

    @property
    def seconds(self) -> float:
        """How long it has gone on, up to the last element."""
        return 0.0 if self.began is None or self._had is None else self._had - self.began

    def ask(self, stats: Callable[[], Any]) -> None:
        """Notes that an element is asked for; logs what `stats` returns once a minute."""
        now = time.monotonic()
        if self.began is None:
            self.began = self._logged = now
        elif now - self._logged >= _LOGGED:
            self._logged = now
            _logger.info("%s", stats())
        if self._had is not None:
            self.computed += now - self._had
            self._had = now
        self._asked = now
        annotate = clock.annotator()
        if annotate is not None:
            self._annotation = annotate("grain_jax: wait")
            self._annotation.__enter__()

    def left(self) -> None:
        """Notes that no element came, at the end or by an error."""
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def got(self) -> None:
        """Notes that the element is there."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None
        now, asked = time.monotonic(), self._asked
        self._had = now
        if asked is not None:
            self._asked = None
            self.waited += now - asked
            self.ready += now - asked < _AT_ONCE
            self.elements += 1
            self.spans.append((asked, now))


class Converting:
    """Counts the time that a function takes, and about how large what it returns is.

    Attributes:
      cost: as a step's.
      spans: of the latest calls, when they began and ended.
    """

    def __init__(self, convert: Callable[..., Any], name: str) -> None:
        self._convert = convert
        self._name = name
        self.cost: clock.Cost = [0, 0.0, 0, 0, 0]
        self.spans: deque[tuple[float, float]] = deque(maxlen=_SPANS)

    def __call__(self, *element: Any) -> Any:
        annotate = clock.annotator()
        begin = time.monotonic()
        if annotate is None:
            found = self._convert(*element)
        else:
            with annotate(f"grain_jax: {self._name}"):
                found = self._convert(*element)
        end, cost = time.monotonic(), self.cost
        cost[0] += 1
        cost[1] += end - begin
        cost[2] += 1
        self.spans.append((begin, end))
        if cost[0] % _WEIGHED == 1:
            cost[3] += clock.size(getattr(found, "batch", found))
            cost[4] += 1
        return found

    def said(self, name: str) -> StepStats:
        """Returns it as a step."""
        calls, seconds, records, size, weighed = self.cost
        total = int(size * records / weighed) if weighed else None
        return StepStats(name, "trainer", calls, seconds, 0.0, records, total)


class Reading:
    """An owned iterator that nobody else measures, with the time that its elements take."""

    def __init__(self, owned: Owned) -> None:
        self.has_state, self.draws, self.is_fresh = owned.has_state, owned.draws, owned.is_fresh
        self.state, self.set_state, self.close = owned.state, owned.set_state, owned.close
        self.next = Converting(owned.next, "reading the source")

    def said(self, name: str) -> StepStats:
        """Returns it as a step."""
        return self.next.said(name)


def summary(
    waits: Waits,
    meter: Meter | None,
    more: Sequence[StepStats] = (),
    *,
    buffered: float | None = None,
    buffer_size: int | None = None,
    skipped: int = 0,
) -> Stats:
    """Returns what there is to say.

    Args:
      waits: of the training loop.
      meter: of the pipeline, if it has one.
      more: what is done besides, in order; its source first.
      buffered: elements that are there when the loop asks, on average.
      buffer_size: how many there may be.
      skipped: records that were left out.
    """
    steps = [] if meter is None else meter.steps()
    return Stats(
        waits.seconds,
        waits.elements,
        waits.waited,
        waits.computed,
        shared([*steps, *more]),
        () if meter is None else tuple(meter.workers()),
        0.0 if meter is None else meter.waited,
        waits.ready / waits.elements if waits.elements else 0.0,
        buffered,
        buffer_size,
        skipped,
    )


def unmeasured(iterator: Any) -> errors.InvalidValueError:
    """Returns what is raised where nobody has asked to measure."""
    return errors.InvalidValueError(
        f"this {type(iterator).__name__} measures nothing yet. Write enable_profiling=True where "
        "workers are set up, or call start_stats() on the iterator before its first element."
    )
