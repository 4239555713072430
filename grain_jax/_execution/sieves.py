"""Sieves: how many elements filters drop, counted in windows until somebody has to be told."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Sequence

from grain_jax._algebra.blocks import Sieved
from grain_jax._values import dataset_options, errors

__all__ = ["Sieves", "watches"]

_WINDOW = 1_000
"""Elements after which the dropped ones are looked at."""

_logger = logging.getLogger("grain_jax")


def watches(options: dataset_options.DatasetOptions) -> bool:
    """Whether anybody wants to know how much filters drop."""
    return bool(options.filter_warn_threshold_ratio or options.filter_raise_threshold_ratio)


class Sieves:
    """Counts what the filters of a stage drop, for each filter by itself.

    Args:
      options: from which part on there is a warning, or an error.
      absent: says what leaves records absent as they are read.
    """

    def __init__(
        self, options: dataset_options.DatasetOptions, absent: Callable[[], str] = lambda: ""
    ) -> None:
        self._absent = absent
        self._warn = options.filter_warn_threshold_ratio
        self._raise = options.filter_raise_threshold_ratio
        self._counts: dict[str, tuple[int, int]] = {}  # elements of the window, and those dropped
        self._told: set[str] = set()

    def add(
        self, sieved: Sequence[Sieved], done: int
    ) -> tuple[int, errors.InvalidValueError] | None:
        """Counts what filters have left of the units of a task.

        Args:
          sieved: what they left, in order.
          done: units that count.

        Returns:
          The first unit that ends a window of which too much was dropped, and the error.
        """
        first: tuple[int, errors.InvalidValueError] | None = None
        for one in sieved:
            found = self._add(one, done)
            if found is not None and (first is None or found[0] < first[0]):
                first = found
        return first

    def _add(self, one: Sieved, done: int) -> tuple[int, errors.InvalidValueError] | None:
        title, count, units, kept = one
        count = min(count, done) if units is None else bisect.bisect_left(units, done)
        seen, dropped = self._counts.get(title, (0, 0))
        begin = 0
        while begin < count:
            end = min(count, begin + _WINDOW - seen)
            seen += end - begin
            if kept is not None:
                dropped += end - begin
                dropped -= bisect.bisect_left(kept, end) - bisect.bisect_left(kept, begin)
            begin = end
            if seen == _WINDOW:
                if self._raise and dropped >= self._raise * _WINDOW:
                    unit = end - 1 if units is None else units[end - 1]
                    return unit, errors.InvalidValueError(self._text(title, dropped, "raise"))
                if self._warn and dropped >= self._warn * _WINDOW and title not in self._told:
                    self._told.add(title)
                    _logger.warning("%s", self._text(title, dropped, "warn"))
                seen = dropped = 0
        self._counts[title] = seen, dropped
        return None

    def _text(self, title: str, dropped: int, kind: str) -> str:
        title = title or self._absent() or "the source, which has None there,"
        return (
            f"{title} dropped {100 * dropped / _WINDOW:g} % of the last {_WINDOW} elements. If "
            "that is as it should be, leave them out of the source, where they need not be read, "
            f"or set filter_{kind}_threshold_ratio=None in the experimental.DatasetOptions of a "
            "WithOptionsIterDataset."
        )
