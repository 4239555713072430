"""Streams: the segments of a plan, put behind one another and pulled.

Every output travels with a *cursor*, which says where to go on after it: ordinal of the next record
and how many outputs of it are behind us; then for each later segment how many groups it has made
and how many outputs of the current one are behind us. A stream can be started at any cursor.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from grain_jax._datasets.plan import Gathered, Outcome, Root, Segment
from grain_jax._datasets.schedule import Lane, Span
from grain_jax._execution.inline import Bundle, Executor

__all__ = [
    "END",
    "PENDING",
    "Cursor",
    "Groups",
    "Head",
    "Item",
    "Pull",
    "SegmentStream",
    "Upstreamed",
]

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

_QUICK_SECONDS = 2e-3


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
    """One output, where it stands, and where to go on after it."""

    held: Any
    row: int
    position: int
    output: int
    cursor: Cursor

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


class Feed(Protocol):
    """Where a segment's tasks come from."""

    def next(self, block: bool) -> Any:
        """Returns a task, PENDING or END."""

    def rest(self, task: Any, done: int) -> Any:
        """Returns the task for what is left after `done` units."""

    def learn(self, outcome: Outcome) -> None:
        """Hears how a task went."""


class Pull(Protocol):
    """A stream of items."""

    def pull(self, block: bool) -> Any:
        """Returns an item, PENDING or END."""

    def advance(self) -> None:
        """Gets work going without waiting for any."""


@dataclasses.dataclass(slots=True)
class _Stretch:
    """Neighbouring units of records."""

    payload: Any
    span: Span
    unit: int
    units: int
    label: str
    inputs: Sequence[tuple[Any, Sequence[int]]] = ()

    def before(self, unit: int) -> Cursor:
        return (self.span.ordinal + min(unit * self.unit, self.span.count),)

    def last(self, unit: int) -> tuple[int, int]:
        place = min((unit + 1) * self.unit, self.span.count) - 1
        return self.span.first + self.span.stride * place, 0


class Head:
    """Tasks for the first segment: stretches of a lane's records.

    A task takes as many units as keep it short but worth its while.
    """

    def __init__(self, root: Root, lane: Lane, ordinal: int, most_units: int) -> None:
        self._root = root
        self._lane = lane
        self._ordinal = ordinal
        self._most = most_units
        self._units = 1

    def next(self, block: bool) -> Any:
        """Returns the next stretch, or END."""
        span = self._lane.span(self._ordinal, self._units)
        if span is None:
            return END
        payload = self._root.prepare(span)
        if payload is None:
            return END
        span = dataclasses.replace(span, count=payload.count)
        self._ordinal += span.count
        return self._task(payload, span)

    def rest(self, task: _Stretch, done: int) -> _Stretch:
        """Returns the stretch after the first `done` units."""
        begin, end = done * self._lane.unit, task.span.count
        return self._task(task.payload.part(begin, end), task.span.part(begin, end))

    def learn(self, outcome: Outcome) -> None:
        """Doubles the stretches while they are quick."""
        if outcome.seconds < _QUICK_SECONDS and self._units < self._most:
            self._units *= 2
        elif outcome.seconds > 4 * _QUICK_SECONDS and self._units > 1:
            self._units //= 2

    def _task(self, payload: Any, span: Span) -> _Stretch:
        units = -(-span.count // self._lane.unit)
        last = span.first + span.stride * (span.count - 1)
        label = f"positions {span.first} to {last}" + (
            f" in steps of {span.stride}" if span.stride > 1 else ""
        )
        return _Stretch(payload, span, self._lane.unit, units, label)


@dataclasses.dataclass(slots=True)
class _Group:
    """One unit of a later segment: outputs of the segment before."""

    payload: Gathered
    inputs: Sequence[tuple[Any, Sequence[int]]]
    cursors: tuple[Cursor, Cursor]
    units: int
    label: str

    def before(self, unit: int) -> Cursor:
        return self.cursors[unit]

    def last(self, unit: int) -> tuple[int, int]:
        outputs = self.payload.outputs
        return self.payload.positions[-1], outputs[-1] if outputs else 0


class Groups:
    """Tasks for a later segment: as many items of the stream before as make a unit."""

    def __init__(self, upstream: Pull, segment: Segment, cursor: Cursor, local: bool) -> None:
        self._upstream = upstream
        self._segment = segment
        self._size = segment.unit
        self._local = local
        self._before, self._made = cursor[:-1], cursor[-1]
        self._items: list[Item] = []
        self._over = False

    def next(self, block: bool) -> Any:
        """Returns the next group once it is complete, PENDING, or END."""
        while not self._over and len(self._items) < self._size:
            item = self._upstream.pull(block)
            if item is PENDING:
                return PENDING
            if item is END:
                self._over = True
                for level, (_, drop) in enumerate(self._segment.batches, 1):
                    if drop:
                        size = _product(self._segment.batches[:level])
                        del self._items[len(self._items) // size * size :]
            else:
                self._items.append(item)
        items, self._items = self._items, []
        if not items:
            return END
        return self._group(items)

    def rest(self, task: _Group, done: int) -> _Group:
        """A group is one unit, so nothing is ever left."""
        raise AssertionError("a group is done or it failed")

    def learn(self, outcome: Outcome) -> None:
        """A group's size is given."""

    def _group(self, items: list[Item]) -> _Group:
        outputs = [item.output for item in items]
        payload = Gathered(
            [item.position for item in items],
            outputs if any(outputs) else None,
            self._made * self._size,
        )
        before = (*self._before, self._made)
        self._before, self._made = items[-1].cursor, self._made + 1
        inputs: list[tuple[Any, Sequence[int]]] = []
        rows: list[int] = []
        for item in items:
            source = item.held if self._local else item.held.bundle
            if not inputs or inputs[-1][0] is not source:
                rows = []
                inputs.append((source, rows))
            rows.append(item.row)
        if self._local:
            elements = [item.element for item in items]
            inputs = [(_Loaded(elements), range(len(elements)))]
        label = f"the group with positions {payload.positions[0]} to {payload.positions[-1]}"
        return _Group(payload, inputs, (before, (*self._before, self._made)), 1, label)


class _Loaded:
    """Elements that are in this process already, as a bundle."""

    info = None

    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements

    def __len__(self) -> int:
        return len(self._elements)

    def load(self) -> list[Any]:
        return self._elements


def _product(batches: Sequence[tuple[int, bool]]) -> int:
    result = 1
    for size, _ in batches:
        result *= size
    return result


class SegmentStream:
    """The outputs of one segment, in order; tasks run ahead up to what the executor can use.

    Args:
      executor: who does the tasks.
      kind: number of the segment in the executor's program.
      feed: where the tasks come from.
      skip: outputs of the first unit that are behind us.
      depth: tasks in flight.
    """

    def __init__(
        self,
        executor: Executor,
        kind: int,
        feed: Feed,
        skip: int,
        depth: int,
        upstream: Pull | None,
    ) -> None:
        self._executor = executor
        self._kind = kind
        self._feed = feed
        self._skip = skip
        self._depth = depth
        self._upstream = upstream
        self._window: deque[tuple[Any, int]] = deque()
        self._ready: deque[Item] = deque()
        self._over = False

    def advance(self) -> None:
        """Submits tasks as far as they are known and the executor has use for them."""
        if self._upstream is not None:
            self._upstream.advance()
        while not self._over and len(self._window) < self._depth:
            if not self._submit(block=False):
                break

    def pull(self, block: bool) -> Any:
        """Returns the next item, PENDING or END."""
        while True:
            if self._ready:
                return self._ready.popleft()
            self.advance()
            if not self._window:
                if self._over:
                    return END
                if not block:
                    return PENDING
                self._submit(block=True)
                continue
            task, ticket = self._window[0]
            bundle = self._executor.result(ticket, block)
            if bundle is None:
                return PENDING
            self._window.popleft()
            self._unpack(task, bundle)

    def _submit(self, block: bool) -> bool:
        task = self._feed.next(block)
        if task is PENDING:
            return False
        if task is END:
            self._over = True
            return False
        self._window.append((task, self._put(task)))
        return True

    def _put(self, task: Task) -> int:
        return self._executor.submit(self._kind, task.payload, task.inputs, task.label)

    def _unpack(self, task: Any, bundle: Bundle) -> None:
        outcome: Outcome = bundle.info
        self._feed.learn(outcome)
        held = Held(bundle)
        skip, self._skip = self._skip, 0
        if outcome.units is None:
            for unit in range(skip, outcome.done):
                position, output = task.last(unit)
                self._ready.append(Item(held, unit, position, output, (*task.before(unit + 1), 0)))
        else:
            self._unpack_counted(task, outcome, held, skip)
        if outcome.done < task.units:
            rest = self._feed.rest(task, outcome.done)
            self._window.appendleft((rest, self._put(rest)))

    def _unpack_counted(self, task: Any, outcome: Outcome, held: Held, skip: int) -> None:
        assert outcome.units is not None
        count, previous = 0, -1
        for row, unit in enumerate(outcome.units):
            count = count + 1 if unit == previous else 1
            previous = unit
            if unit == 0 and count <= skip:
                continue
            is_last = row + 1 == len(outcome.units) or outcome.units[row + 1] != unit
            cursor = (*task.before(unit + 1), 0) if is_last else (*task.before(unit), count)
            output = outcome.outputs[row] if outcome.outputs else 0
            self._ready.append(Item(held, row, outcome.positions[row], output, cursor))


class Upstreamed:
    """A user's own iterator as a stream; its state is the cursor."""

    def __init__(self, iterator: Any, number: int) -> None:
        self._iterator = iterator
        self._number = number

    def advance(self) -> None:
        """A user's iterator runs when it is asked."""

    def pull(self, block: bool) -> Any:
        """Returns the next item or END."""
        try:
            element = next(self._iterator)
        except StopIteration:
            return END
        self._number += 1
        get_state = getattr(self._iterator, "get_state", None)
        cursor = (self._number, None if get_state is None else get_state())
        return Item(_Elements(element), 0, self._number - 1, 0, cursor)


class _Elements:
    """One element in this process."""

    __slots__ = ("_element",)

    def __init__(self, element: Any) -> None:
        self._element = element

    def __getitem__(self, row: int) -> Any:
        return self._element
