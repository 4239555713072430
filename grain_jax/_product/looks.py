"""What looks for notices have shown of a process that does not come, and how many of them count."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["LOOKS", "LOOKS_AT_FIRST", "TRIES", "Elsewhere", "Seen", "failures"]

# A notice counts at the second look: who failed may be trying again. Who has
# left before the first batch may be about to come with the iterator that this one is meant for.
# Who waits at one that this process has gone on from learns of that first, and may then come here.
LOOKS, LOOKS_AT_FIRST = 2, 6
# A process that fails again and again may be over it soon, but for so many looks.
TRIES = 6


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A process waits for this one at another place.

    Attributes:
      problem: what is wrong with that, in words.
      place: where this one has to go, if nothing is.
      looks: that have to show it before it counts.
    """

    problem: str = ""
    place: int | None = None
    looks: int = LOOKS


@dataclasses.dataclass(frozen=True)
class Seen:
    """What looks have shown of a process that is waited for.

    A process that tries again and again puts up something else in each attempt. What it has left
    stays left all the same, and each place that it waits at elsewhere is one where this process
    does not come.

    Attributes:
      notice: what it has put up.
      looks: in how many looks, one after the other.
      left: in how many looks it had left the iterator.
      elsewhere: where it waits, if not here.
      apart: in how many looks it did.
      tries: in how many looks it had failed once more.
    """

    notice: dict[str, Any] | None = None
    looks: int = 0
    left: int = 0
    elsewhere: Elsewhere | None = None
    apart: int = 0
    tries: int = 0


def failures(notice: dict[str, Any] | None) -> int:
    """How often a process has failed, one time after the other."""
    return 0 if notice is None else int(notice.get("failures", 0))
