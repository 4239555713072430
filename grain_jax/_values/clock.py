"""The clock of a thread: where the time of a task goes, step by step; see `progress.at`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from grain_jax._values import trees

__all__ = ["Clock", "Cost", "Costs", "annotator", "here", "size"]

Cost = list[Any]
"""Calls, seconds, elements that went in; bytes that came out, and of how many of these elements."""


class Clock:
    """Where the time of a thread goes: to what it told of last.

    Args:
      weighs: whether the size of what steps make is looked at, once for each of them.

    Attributes:
      begin: of what runs now, in seconds of `time.perf_counter`.
      cost: of what runs now.
      costs: by what was told.
      weighs: as given.
      waited: seconds in which reading only waited.
      annotate: makes what shows a step in a trace of JAX's profiler; None where there is none.
      annotation: that of what runs now.
    """

    annotate: Any
    annotation: Any

    __slots__ = ("annotate", "annotation", "begin", "cost", "costs", "waited", "weighs")

    def __init__(self, weighs: bool = False) -> None:
        self.cost: Cost = [0, 0.0, 0, 0, 0]  # what comes before the first is nobody's
        self.costs: dict[str, Cost] = {}
        self.weighs = weighs
        self.waited = 0.0
        self.annotate = self.annotation = None
        self.begin = time.perf_counter()

    def weigh(self, what: str, outputs: list[Any], elements: int = 0) -> None:
        """Takes the first of the outputs of what has run for as large as the others, once.

        Args:
          what: has run.
          outputs: that it has made.
          elements: of which; 0 for all that it was told to act on so far.
        """
        cost = self.costs.get(what)
        if cost is not None and not cost[4] and outputs:
            cost[3] += size(outputs[0]) * len(outputs)
            cost[4] += elements or cost[2]

    def stop(self) -> dict[str, Cost]:
        """Returns the costs, those of what runs now until now."""
        self.cost[1] += time.perf_counter() - self.begin
        return self.costs


Costs = tuple[int, int, float, float, float, dict[str, Cost]]
"""What a task took: the number of its stage; the id of the process that did it; when it began, in
seconds of `time.monotonic`; how long it took, and how much of that reading only waited; and the
costs by what was at work."""


def annotator() -> Any:
    """Returns what makes annotations for JAX's profiler, where JAX is there already."""
    profiler = getattr(sys.modules.get("jax"), "profiler", None)
    return getattr(profiler, "TraceAnnotation", None)


class _Here(threading.local):
    """The clock of each thread."""

    clock: Clock | None = None


here = _Here()


def size(element: Any) -> int:
    """Returns the bytes of arrays and text in an element; 0 where it does not say."""
    try:
        leaves, _ = trees.flatten(element, is_sorted=False)
        return sum(
            len(leaf) if isinstance(leaf, (bytes, str)) else int(getattr(leaf, "nbytes", 8))
            for leaf in leaves
        )
    except Exception:  # of the user's class; the element is what it is all the same
        return 0
