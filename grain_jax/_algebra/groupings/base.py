"""What a grouping is: it decides, from a few numbers of each element, which of them go together.

It runs in the trainer's process, is pure, and holds numbers and never elements. Where it began is
a few integers, too, so that a stream starts again anywhere from a cursor of constant shape.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = [
    "EPOCH",
    "MANY",
    "Group",
    "Grouper",
    "Grouping",
    "Measure",
    "Members",
    "Restart",
    "Schedule",
]

EPOCH = 1 << 40
"""Positions of a stream that has begun anew once are higher by so much; of twice, by twice that."""

MANY = 1 << 20
"""What `wants` says where any number of elements is of use: a parent gives what it has ready."""

Measure = Callable[[Any], Any]
"""Of an element what a grouping has to know: a number, or a tuple of numbers."""

Members = tuple[int, int, int]
"""Neighbouring elements: the parent, the number of the first since the grouper began, and the one
behind the last."""


class Restart(NamedTuple):
    """Where a grouper would begin again.

    Attributes:
      delivered: for each parent, the elements before that point, since the grouper began.
      kept: the grouping's own numbers there; of constant length.
    """

    delivered: tuple[int, ...]
    kept: tuple[int, ...]


class Group(NamedTuple):
    """The elements of one output.

    Attributes:
      members: in the order in which the output has them.
      layout: what the step that makes the output needs besides: slices, places in a bin.
      restart: the point behind this output. None: it stays, and this is one output more since.
      number: how many groups come before, where the step that makes the output has to know.
      output: which one it is of those whose last element is the same, so that each draws anew; None
        where there is only one.
    """

    members: Sequence[Members]
    layout: Any = None
    restart: Restart | None = None
    number: int = 0
    output: int | None = None


class Grouper(abc.ABC):
    """A grouping at work, from a restart point on.

    Attributes:
      groups: those that are complete and that nobody has asked for; a subclass adds to them.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []

    @abc.abstractmethod
    def wants(self) -> tuple[int, int] | None:
        """Returns which parent to pull next, and how many elements at most; None: no more.

        A parent that is wanted after its end begins anew. What this raises is raised behind the
        groups that are made.
        """

    @abc.abstractmethod
    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        """Takes note of `count` more elements of a parent, with their measures if it has one."""

    @abc.abstractmethod
    def end(self, parent: int) -> None:
        """Takes note of a parent's end."""

    def epoch(self, parent: int) -> int:
        """Returns how often a parent has begun anew before the elements that it gives next."""
        return 0

    def made(self) -> list[Group]:
        """Returns the groups that are complete since it was last asked, in order."""
        groups, self.groups = self.groups, []
        return groups

    def dropped(self, parent: int) -> int:
        """Returns how many of a parent's last elements are in no group, once there is no more."""
        return 0


class Schedule(abc.ABC):
    """The order of elements that are handed on as they are, where none of them decides it."""

    @abc.abstractmethod
    def next(self, most: int) -> tuple[Sequence[int], Sequence[tuple[int, ...]]]:
        """Returns the parents of the next elements, at most so many, as if none had an end.

        Beside it the grouping's own numbers behind each; both are empty if there are no more. A
        parent that is next after its end begins anew.
        """

    @abc.abstractmethod
    def take(self, count: int) -> None:
        """Takes note that the first `count` of these are delivered."""

    @abc.abstractmethod
    def end(self, parent: int) -> None:
        """Takes note that the parent of the next element has none."""

    def epoch(self, parent: int) -> int:
        """Returns how often a parent has begun anew before the elements that it gives next."""
        return 0

    def ahead(self) -> Sequence[int] | None:
        """Returns the parents that work ahead; None for all."""
        return None


class Grouping:
    """Data: it pickles and compares.

    Attributes:
      measure: computed of each element where that is made; None where counting is enough.
      wanted: about how many elements it takes to get anywhere: so many are read together.
    """

    measure: Measure | None = None
    wanted: int = 1

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns its own numbers at the start."""
        return ()

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that goes on from its own numbers of a restart point."""
        raise NotImplementedError(f"{type(self).__name__} has neither a grouper nor a schedule")

    def schedule(self, kept: tuple[int, ...], parents: int) -> Schedule | None:
        """Returns one in place of a grouper where elements are handed on by one; else None."""
        return None

    def shares(self, parents: int) -> Sequence[float]:
        """Returns about which part of the elements each parent gives: so much work it gets."""
        return [1 / parents] * parents

    def of_shard(self, shards: int) -> Grouping:
        """Returns what decides in each of so many shards that the elements are dealt out over.

        Raises:
          InvalidValueError: if the shards cannot have equal parts of it.
        """
        return self

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns its own numbers as a state has them; whole numbers, as many as at the start.

        Args:
          kept: what the state says.
          parents: how many streams there are.
          joined: whether it was made of the states of several processes.

        Raises:
          StateError: if no run can have come there.
        """
        return kept

    def spec(self, parents: Sequence[Any]) -> Any:
        """Returns shapes and dtypes of what is made of elements; None where that is not known.

        Args:
          parents: those of the elements of each parent.
        """
        return None

    def identity(self) -> str:
        """Names it, with what has to be equal for a state to mean the same."""
        fields = getattr(self, "__dataclass_fields__", ())
        values = {name: getattr(self, name) for name in fields}
        text = ", ".join(f"{name}={value!r}" for name, value in values.items() if _is_data(value))
        return f"{type(self).__name__}({text})"


def _is_data(value: Any) -> bool:
    """Whether its text says what it is."""
    if isinstance(value, tuple):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (bool, int, float, str))
