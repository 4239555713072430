"""States of version 1, in which a cursor was a flat list: they are read as states of version 2.

There each lane had a list of two numbers for every stage (a user's iterator: a number and its
state), stages behind all lanes had theirs in "tail", and the turn of the lanes stood beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FROM", "VERSION", "as_version_2"]

VERSION = 1
FROM = "from version 1"
"""A field of what `as_version_2` returns: whether the stages behind the lanes had begun. In such a
state None stands for a stream that had not."""


def as_version_2(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a state of version 1 says, in the form of version 2.

    What is no such state is returned as it is, or keeps what is wrong, for others to refuse.
    """
    if type(state.get("grain_jax")) is not int or state["grain_jax"] != VERSION:
        return state
    found = {**state, "grain_jax": 2}
    if state.get("elastic") is not False:
        return found
    cursors, tail = found.pop("cursors", None), found.pop("tail", None)
    turn, batches = found.pop("next_lane", None), found.pop("batches", None)
    if not isinstance(cursors, list) or not isinstance(tail, list) or len(tail) % 2:
        return {**found, "cursor": {"cursors": cursors, "tail": tail}}
    joined = state.get("joined")
    if type(joined) is int:
        cursor = _joined(cursors, batches)
    elif len(cursors) == 1:
        cursor = _nested(cursors[0])
    else:
        cursor = [[list(map(_nested, cursors)), [turn], 0], 0]
    for begin in range(0, len(tail), 2):
        cursor = _behind(cursor, *tail[begin : begin + 2])
    return {**found, "cursor": cursor, FROM: bool(tail)}


def _nested(numbers: Any) -> Any:
    """Returns a lane's list as a nested cursor; None for one that has not begun."""
    if not isinstance(numbers, list) or len(numbers) % 2 or not numbers:
        return numbers
    cursor = numbers[:2]
    for begin in range(2, len(numbers), 2):
        cursor = _behind(cursor, *numbers[begin : begin + 2])
    return cursor


def _behind(cursor: Any, number: Any, since: Any) -> Any:
    return [[[cursor], [number], 0], since]


def _joined(cursors: list[Any], batches: Any) -> Any:
    """Returns the cursors of joined shards as that of the batches made of them.

    Each ends with the batches that its shard was part of. One that has not begun was part of none.
    """
    parents, made = [], []
    for numbers in cursors:
        known = isinstance(numbers, list) and len(numbers) >= 2
        made.append(numbers[-2] if known else 0)
        parents.append(_nested(numbers[:-2]) if known else numbers)
    most = max([number for number in (*made, batches) if type(number) is int], default=0)
    return [[parents, [most, *made], 0], 0]
