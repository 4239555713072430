"""What a grouping is: it decides, from a few integers of each element, which of them go together.

It runs in the trainer's process, is pure, and holds numbers and never elements. Where it began is
a few integers, too, so that a stream starts again anywhere from a cursor of constant shape.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["Group", "Grouper", "Grouping", "Members", "Restart"]

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
    """

    members: Sequence[Members]
    layout: Any = None
    restart: Restart | None = None


class Grouper(abc.ABC):
    """A grouping at work, from a restart point on.

    Attributes:
      groups: those that are complete and that nobody has asked for; a subclass adds to them.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []

    @abc.abstractmethod
    def wants(self) -> tuple[int, int] | None:
        """Returns which parent to pull next, and how many elements at most; None: no more."""

    @abc.abstractmethod
    def take(self, parent: int, count: int) -> None:
        """Takes note of `count` more elements of a parent."""

    @abc.abstractmethod
    def end(self, parent: int) -> None:
        """Takes note of a parent's end."""

    def made(self) -> list[Group]:
        """Returns the groups that are complete since it was last asked, in order."""
        groups, self.groups = self.groups, []
        return groups

    def dropped(self, parent: int) -> int:
        """Returns how many of a parent's last elements are in no group, once there is no more."""
        return 0


class Grouping(Protocol):
    """Data: it pickles, compares, and names itself."""

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns its own numbers at the start."""

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that goes on from its own numbers of a restart point.

        Raises:
          StateError: if no such grouper can have had them.
        """
