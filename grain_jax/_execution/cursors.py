"""Cursors of a state: read along the form of a pipeline's, with every check a file deserves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grain_jax._datasets.plan import Upstream
from grain_jax._execution import forms
from grain_jax._execution.runs import Cursor
from grain_jax._values import errors

__all__ = ["LARGEST", "Reading", "Unlike", "brief", "leaves"]

LARGEST = 1 << 50
"""Beyond any count that a run can reach; products of two such numbers are never made."""


class Unlike(Exception):
    """A cursor is nested in another way than this pipeline's."""


class Reading:
    """Reads a cursor along the form of this pipeline's.

    Args:
      is_old: whether None may stand for a start.
      is_joint: whether it is made of the states of all processes.
    """

    def __init__(self, is_old: bool, is_joint: bool) -> None:
        self._is_old = is_old
        self._is_joint = is_joint

    def conform(self, given: Any, form: forms.Form) -> Cursor:
        """Returns a cursor of that form.

        Raises:
          StateError: for a number that is none, or is beyond the end.
          Unlike: if it has another form.
        """
        if isinstance(form, forms.Leaf):
            return self._leaf(given, form)
        if given is None and self._is_old:
            return form.start
        cursors, kept, groups = _list(_list(given, 2)[0], 3)
        if len(_list(cursors)) != len(form.parents):
            raise Unlike(
                f"{len(cursors)} cursors where this pipeline has {len(form.parents)} streams"
            )
        found = tuple(map(self.conform, cursors, form.parents))
        numbers = form.first
        if self._is_old and len(_list(kept)) == 1 < len(numbers):
            kept = kept * len(numbers)  # of a batch, which had one number
        if len(_list(kept)) != len(numbers):
            raise Unlike(f"{brief(kept)} where this pipeline has {len(numbers)} counts")
        counts = tuple(map(_count, kept))
        if form.grouping is not None:
            counts = form.grouping.read(counts, len(form.parents), joined=self._is_joint)
        return (found, counts, _count(groups)), _count(given[1])

    def _leaf(self, given: Any, form: forms.Leaf) -> Cursor:
        root, lane = form.root, form.lane
        if given is None and self._is_old:
            return form.start
        read, since = _list(given, 2)
        if isinstance(read, list):
            raise Unlike(f"{brief(read)} where this pipeline has a count")
        count = _count(read)
        if isinstance(root, Upstream):
            if count and since is None and not root.rereads:
                raise errors.StateError(
                    f"the state does not say where the iterator of "
                    f"{root.title} stood, since that had no get_state. Give "
                    "it get_state and set_state."
                )
            return count, since
        assert lane is not None
        if count < lane.before or (lane.records is not None and count - lane.before > lane.records):
            raise errors.StateError(
                f"the state has read {count} records of its shard or lane, and this stream "
                f"has {lane.records} there, after {lane.before} before it. Build it with as many "
                "epochs as before, or more; a state of one of `loader.epochs()` belongs to that "
                "epoch."
            )
        return count, _count(since)

    def restarted(self, given: Any, form: forms.Form) -> Cursor:
        """Returns a cursor that goes on from the records a state has read, whatever else it says.

        Raises:
          StateError: if it has not as many leaves as this pipeline.
        """
        found = list(leaves(given))
        streams = len(list(form.leaves()))
        begun = iter(found)
        try:
            if len(found) == streams:
                return self._begun(begun, form)
        except Unlike:
            pass
        raise errors.StateError(
            f"field 'cursor' of the state is {brief(given)}, and this pipeline reads {streams} "
            "streams. Build it with as many lanes and shards as then."
        )

    def _begun(self, leaves: Iterator[Any], form: forms.Form) -> Cursor:
        if isinstance(form, forms.Leaf):
            leaf = next(leaves)
            if leaf is not None and not isinstance(form.root, Upstream):
                leaf = [_list(leaf, 2)[0], 0]
            return self._leaf(leaf, form)
        (_, kept, groups), since = form.start
        return (tuple(self._begun(leaves, one) for one in form.parents), kept, groups), since


def leaves(given: Any) -> Iterator[Any]:
    """Yields what is innermost in a cursor of any form."""
    if isinstance(given, list) and len(given) == 2 and isinstance(given[0], list):
        place = given[0]
        if len(place) == 3 and isinstance(place[0], list):
            for cursor in place[0]:
                yield from leaves(cursor)
            return
    yield given


def _list(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise Unlike(f"{brief(value)} where a list of {length or 'cursors'} belongs")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < LARGEST:
        raise errors.StateError(f"the state has {brief(value)} where a count belongs")
    return value


def brief(value: Any) -> str:
    """Returns a value as a short text."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
