"""Caching: the elements of a stream, kept for when it begins anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from grain_jax._algebra import copies
from grain_jax._algebra.running import Skip
from grain_jax._execution.inline import Bundle, Outputs
from grain_jax._execution.parents import Around, Through
from grain_jax._execution.runs import END, Held, Run, Stream

__all__ = ["Caches", "Memory"]

Put = Callable[[list[Any]], Any]


@dataclasses.dataclass
class Memory:
    """Runs of a stream from its start on.

    Attributes:
      runs: of elements that nobody else has a hold on.
      skips: records that were left out after the last.
      is_whole: whether these are all.
    """

    runs: list[_Kept] = dataclasses.field(default_factory=list)
    skips: list[Skip] = dataclasses.field(default_factory=list)
    is_whole: bool = False


class Caches:
    """What an iterator remembers, of each stream that has a cache."""

    def __init__(self) -> None:
        self._memories: dict[Any, Memory] = {}

    def stream(self, key: Any, make: Callable[[], Stream], put: Put | None) -> Stream:
        """Returns a stream at its start: as it is remembered, or one that will be.

        Args:
          key: which stream.
          make: makes it.
          put: makes inputs for tasks of workers of elements; None where these stay here.
        """
        memory = self._memories.get(key)
        if memory is not None and memory.is_whole:
            return _Remembered(memory)
        memory = self._memories[key] = Memory()
        return _Remembering(make(), memory, put)


class _Kept:
    """A run whose elements are here, each time as new ones."""

    def __init__(self, run: Run, put: Put | None) -> None:
        rows = range(run.begin, run.end)
        for bundle, _ in run.held.inputs(run.begin, run.end):
            if hasattr(bundle, "move"):
                bundle.move()  # its slot is for others
        self._elements = copies.of_records([run.held[row] for row in rows])
        self._bundle: Bundle | None = None
        if put is not None:
            self._bundle, self._elements = put(self._elements), []
        self._places = run.places
        self._begin, self._end = run.begin, run.end
        self._skips = {row: run.places.skips[row] for row in rows if row in run.places.skips}

    def run(self) -> Run:
        """Returns it."""
        bundle = self._bundle
        if bundle is None:
            bundle = Outputs(copies.of_records(self._elements))
        places = _Places(self._places, self._begin, dict(self._skips))
        return Run(Held(bundle), places, 0, self._end - self._begin)


class _Places(Around):
    """Places whose rows are counted from 0, with skips of their own."""

    def __init__(self, places: Any, first: int, skips: dict[int, tuple[Skip, ...]]) -> None:
        super().__init__(places)
        self._first = first
        self._skips = {row - first: found for row, found in skips.items()}

    def origin(self, row: int) -> Any:
        return super().origin(self._first + row)

    @property
    def skips(self) -> dict[int, tuple[Skip, ...]]:
        return self._skips

    def cursor(self, row: int) -> Any:
        return super().cursor(self._first + row)

    def whereabouts(self, begin: int, end: int) -> Any:
        return super().whereabouts(self._first + begin, self._first + end)

    def measures(self, which: int, begin: int, end: int) -> Any:
        return super().measures(which, self._first + begin, self._first + end)


class _Remembering(Through):
    """A stream whose elements are remembered as they come."""

    def __init__(self, stream: Stream, memory: Memory, put: Put | None) -> None:
        super().__init__(stream)
        self._memory = memory
        self._put = put

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run, PENDING or END."""
        run = super().pull(most, block)
        if isinstance(run, Run):
            kept = _Kept(run, self._put)
            self._memory.runs.append(kept)
            return kept.run()
        if run is END:
            self._memory.skips = list(self.left_over)
            self._memory.is_whole = True
        return run


class _Remembered:
    """A stream that is remembered."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._next = 0
        self._ready: Run | None = None
        self.left_over: list[Skip] = []

    @property
    def is_ready(self) -> bool:
        """Whether an element is here."""
        return self._ready is not None or self._next < len(self._memory.runs)

    def advance(self) -> None:
        """All is done."""

    def close(self) -> None:
        """Nothing is under way."""

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run, or END."""
        if self._ready is None:
            if self._next == len(self._memory.runs):
                self.left_over = list(self._memory.skips)
                return END
            self._ready = self._memory.runs[self._next].run()
            self._next += 1
        run = self._ready
        if len(run) > most:
            return run.split(most)
        self._ready = None
        return run
