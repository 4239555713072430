"""Overlaps: objects that lie in the same memory, as they do in the workers, too.

A decoder fills its buffer and reads it by a view: `self.image = self.buffer.reshape(h, w)`, or
`np.frombuffer(self.buffer)`. Pickle writes the memory of each array by itself, and of the two in a
worker one would never change. So memory that several objects lie in is pickled as one object, and
arrays as views of it. It is found by looking through what was pickled, which is then done again.
Views of a dict (`self.names = self.table.keys()`) are found alike.
"""

from __future__ import annotations

import bisect
import collections
import gc
import io
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from grain_jax._algebra.handles import bounds
from grain_jax._values.arrays import owner_of, reduce_view
from grain_jax._values.errors import InvalidTypeError

__all__ = ["Found", "Overlaps"]

# Classes of arrays that are their memory and its layout, and nothing else.
_KINDS = (np.ndarray, np.memmap, np.matrix, np.recarray)
_VIEWS = {
    type(getattr(kind(), name)()): getattr(kind, name)
    for kind in (dict, collections.OrderedDict)
    for name in ("keys", "values", "items")
}
_MOST_PAIRED = 32  # arrays side by side that are compared by which bytes are theirs


class _Span(NamedTuple):
    """The addresses of an object's memory, and the object."""

    low: int
    high: int
    held: Any


class Region(NamedTuple):
    """Memory that is pickled once, as an object that others are views of."""

    low: int
    high: int
    memory: Any


class _Bytes:
    """Some addresses, for NumPy to look at."""

    def __init__(self, low: int, high: int, kept: list[Any]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (low, False),
            "shape": (high - low,),
            "typestr": "|u1",
        }
        self._kept = kept  # whose memory it is


class Found(NamedTuple):
    """What is to be pickled once: memory, in the order of addresses, and dicts, by their ids."""

    regions: list[Region]
    dicts: frozenset[int]


class Overlaps:
    """What one pickler has met of objects that lie in memory.

    Args:
        before: what `found` has returned after the same was pickled before.
    """

    def __init__(self, before: Found | None = None) -> None:
        self._regions, self._dicts = before or Found([], frozenset())
        self._met: list[Any] = []
        self._viewed: list[Any] = []  # dicts
        self._left_out: dict[int, Any] = {}

    def leave_out(self, view: Any) -> None:
        """Takes no notice of an array that stands for another one, in whose memory it lies."""
        self._left_out[id(view)] = view

    def reduce(self, obj: Any) -> tuple[Any, ...] | None:
        """How to pickle an array or a view; None where pickle may do as it likes."""
        kind: Any = type(obj)
        if kind in _VIEWS:
            (viewed,) = gc.get_referents(obj)
            self._viewed.append(viewed)
            return (_VIEWS[kind], (viewed,)) if id(viewed) in self._dicts else None
        is_view = kind is memoryview
        if (not is_view and kind not in _KINDS) or id(obj) in self._left_out:
            return None
        given = _array(obj)
        if given is not None:
            self._met.append(obj)
            low, high = bounds(given)
            at = bisect.bisect_right(self._regions, low, key=_low) - 1
            if at >= 0 and high <= self._regions[at].high:
                _, _, memory = self._regions[at]
                if obj is memory:
                    return None
                place = low - self._regions[at].low, high - low
                if is_view and obj.contiguous and len(obj.format) == 1:
                    return _memoryview, (memory, place, obj.format, obj.shape, obj.readonly)
                start = given.__array_interface__["data"][0] - self._regions[at].low
                kind = type(given)
                layout = given.shape, given.dtype, start, given.strides
                made = _view, (kind, memory, layout, given.flags.writeable)
                return made if not is_view else (memoryview, (_view(*made[1]),))
        return reduce_view(obj) if is_view else None

    def found(self, pickled: Callable[[], Mapping[int, Any]]) -> Found | None:
        """Returns what several of the objects lie in, if it can be written to; None if nothing.

        Args:
            pickled: returns all that was pickled, by their ids.

        Raises:
            InvalidTypeError: it is that of objects of which neither can be made a view.
        """
        owners = {id(one): one for one in map(owner_of, self._met)}.values()
        makers = [(owner, maker) for owner in owners for maker in _makers(owner)]
        found: Any = pickled() if makers or self._viewed else {}
        spans = [_span(one) for one in self._met]
        spans += [_span(owner, maker) for owner, maker in makers if id(maker) in found]
        regions = [_region(group) for group in _groups(spans) if _is_shared(group)]
        dicts = frozenset(map(id, self._viewed)) & found.keys()
        return Found(regions, dicts) if regions or dicts else None


def _makers(owner: Any) -> list[Any]:
    """Returns the object of the user's, if any, whose memory an owner of memory stands for."""
    if type(owner).__name__ == "_BytesIOBuffer":
        return [one for one in gc.get_referents(owner) if type(one) is io.BytesIO]
    return [] if type(owner) is bytes or _array(owner) is None else [owner]


def _low(region: Region) -> int:
    return region.low


def _array(obj: Any) -> Any:
    """Returns an array over the memory of an object; None for one without plain memory."""
    if isinstance(obj, np.ndarray):
        found = obj
    else:
        try:
            found = np.asarray(obj) if type(obj) is memoryview else np.frombuffer(obj, np.uint8)
        except (TypeError, ValueError, NotImplementedError):
            return None  # of a format that NumPy does not know, say
    return found if found.nbytes and not found.dtype.hasobject else None


def _span(obj: Any, held: Any = None) -> _Span:
    return _Span(*bounds(_array(obj)), obj if held is None else held)


def _groups(spans: list[_Span]) -> list[list[_Span]]:
    """Returns those together whose addresses overlap."""
    groups: list[list[_Span]] = []
    high = 0
    for span in sorted(spans, key=lambda span: span[:2]):
        if span.low >= high:
            groups.append([])
        groups[-1].append(span)
        high = max(high, span.high)
    return groups


def _is_shared(group: list[_Span]) -> bool:
    """Whether two have a byte in common, which may change."""
    if len(group) < 2:
        return False
    if any(not _is_seen_through(span.held) for span in group):
        return True  # the others are views of it
    arrays = [_array(span.held) for span in group]
    if not any(one.flags.writeable for one in arrays):
        return False
    # Columns of one matrix lie between each other, and share nothing.
    pairs = itertools.combinations(arrays, 2)
    return len(group) > _MOST_PAIRED or any(_shares(*pair) for pair in pairs)


def _shares(one: Any, other: Any) -> bool:
    most: Any = 1000  # steps: to know it takes longer the more dimensions there are
    try:
        return bool(np.shares_memory(one, other, max_work=most))
    except np.exceptions.TooHardError:
        return True


def _is_seen_through(obj: Any) -> bool:
    return isinstance(obj, np.ndarray | memoryview)


def _region(group: list[_Span]) -> Region:
    low, high = group[0].low, max(span.high for span in group)
    owners = [span for span in group if not _is_seen_through(span.held)]
    if not owners:
        return Region(low, high, np.asarray(_Bytes(low, high, [span.held for span in group])))
    if len(owners) > 1 or type(owners[0].held) is io.BytesIO:
        names = sorted({type(span.held).__qualname__ for span in group})
        raise InvalidTypeError(
            f"the pipeline cannot be sent to worker processes with objects that lie in the same "
            f"memory ({', '.join(names)}): of these, a worker would have copies that do not change "
            "together. Make one of the other inside the function that uses it, or use "
            "worker_count=0."
        )
    return Region(*owners[0])


def _view(kind: type, memory: Any, layout: tuple[Any, ...], is_writeable: bool) -> Any:
    shape, dtype, start, strides = layout
    made: Any = np.ndarray.__new__(kind, shape, dtype, memory, start, strides)
    if not is_writeable:
        made.flags.writeable = False
    return made


def _memoryview(
    memory: Any, place: tuple[int, int], form: Any, shape: tuple[int, ...], is_readonly: bool
) -> Any:
    start, size = place
    whole: Any = np.frombuffer(memory, np.uint8)[start : start + size]
    view = memoryview(whole).toreadonly() if is_readonly else memoryview(whole)
    return view.cast(form, shape)
