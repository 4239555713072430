"""Items: what travels through streams, and what streams and their feeds are to each other.

Every output travels with a *cursor*, which says where to go on after it: ordinal of the next record
and how many outputs of it are behind us; then for each later segment how many groups it has made
and how many outputs of the current one are behind us. A stream can be started at any cursor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from grain_jax._algebra.running import Skip
from grain_jax._datasets.program import Outcome
from grain_jax._execution.inline import Bundle

__all__ = ["END", "PENDING", "Cursor", "Feed", "Held", "Item", "Pull", "Task"]

Cursor = tuple[Any, ...]


class _Signal:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


PENDING = _Signal("PENDING")
"""Nothing is ready yet."""
END = _Signal("END")
"""There is no more."""


class Held:
    """The outputs of a task, decoded once."""

    __slots__ = ("_loaded", "bundle")

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._loaded: list[Any] | None = None

    def __getitem__(self, row: int) -> Any:
        if self._loaded is None:
            self._loaded = self.bundle.load()
        return self._loaded[row]


@dataclasses.dataclass(slots=True)
class Item:
    """One output.

    Attributes:
      held: the outputs of its task.
      row: which of them it is.
      position: that of its last record.
      output: its flat-map number.
      cursor: where to go on after it.
      origin: the payload of its task.
      rng: the generator that a sampler gave for it.
      skips: records that were left out since the output before.
    """

    held: Any
    row: int
    position: int
    output: int
    cursor: Cursor
    origin: Any = None
    rng: Any = None
    skips: tuple[Skip, ...] = ()

    @property
    def element(self) -> Any:
        """The output itself."""
        return self.held[self.row]


class Task(Protocol):
    """Some units of work for one segment."""

    payload: Any
    inputs: Sequence[tuple[Any, Sequence[int]]]
    units: int
    label: str

    def before(self, unit: int) -> Cursor:
        """Returns the cursor before a unit; `units` stands for the end."""

    def last(self, unit: int) -> tuple[int, int]:
        """Returns position and flat-map number of a unit's last element."""

    @property
    def skips(self) -> tuple[Skip, ...]:
        """Records that were left out before and among its elements."""


class Feed(Protocol):
    """Where a segment's tasks come from.

    Attributes:
      left_over: records that were left out after the last task; read at the end.
    """

    left_over: list[Skip]

    def next(self, block: bool) -> Any:
        """Returns a task, PENDING or END."""

    def rest(self, task: Any, done: int) -> Any:
        """Returns the task for what is left after `done` units."""

    def learn(self, outcome: Outcome) -> None:
        """Hears how a task went."""


class Pull(Protocol):
    """A stream of items.

    Attributes:
      left_over: records that were left out after the last item; read at the end.
    """

    left_over: list[Skip]

    def pull(self, block: bool) -> Any:
        """Returns an item, PENDING or END."""

    def advance(self) -> None:
        """Gets work going without waiting for any."""
