"""Iterables of the user's own as streams: read in the trainer, whoever does what follows."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from grain_jax._algebra import held
from grain_jax._algebra.running import Skip
from grain_jax._datasets import iterables
from grain_jax._datasets.plan import Upstream
from grain_jax._execution.ahead import RunAhead
from grain_jax._execution.engine import culprit
from grain_jax._execution.engine.wire import UnsendableError
from grain_jax._execution.farewell import call_within
from grain_jax._execution.inline import Outputs
from grain_jax._execution.parents import Around, Through
from grain_jax._execution.runs import END, PENDING, Cursor, Held, Run, Whereabouts
from grain_jax._values import errors, faults
from grain_jax._values.clock import Cost, size
from grain_jax._values.trees import IMMUTABLE_TYPES

__all__ = ["Own", "Plain"]

Put = Callable[[list[Any]], Any]
"""Makes an input for tasks of elements, after which nothing can change them."""

# An input of a task has so many elements at most, and as many bytes, if it has more than one.
_MOST_ELEMENTS = 64
_MOST_BYTES = 1 << 20

_WEIGHED = 16
"""Of so many elements one is looked at for its size."""

# `close()` waits so long for an iterable that is being read, and so long for its own `close`.
_PATIENCE, _CLOSING = 0.45, 0.3


class _Reader:
    """Goes through an iterable, one element with each call; opens it at the first.

    Args:
      root: the iterable.
      cursor: where to begin.
      put: for elements that the iterable could change as it goes on; None leaves them as they are.
    """

    def __init__(self, root: Upstream, cursor: Cursor, put: Put | None) -> None:
        self._root = root
        self._number, self._state = cursor
        self._put = put
        self.cost: Cost | None = None
        self._iterator: Any = None

    def __call__(self) -> tuple[Any, bool, int, Any]:
        """Returns the next element, whether it is a bundle, how many there were, and the state."""
        try:
            if self._iterator is None:
                self._open()
            elements = [next(self._iterator) if self.cost is None else self._timed(self.cost)]
        except StopIteration:
            raise
        except Exception as error:
            where = f"element {self._number} (counted from 0)"
            faults.reraise(error, f"reading {self._root.title}", where)
        held.detach(elements, 0)  # the iterator may fill it with the next one
        found, is_bundle = elements[0], False
        if self._put is not None and not _is_plain(found):
            found, is_bundle = _sent(self._put, elements, self._root, self._number), True
        self._number += 1
        get_state = getattr(self._iterator, "get_state", None)
        # A copy: the iterator may hand out the very object that it goes on counting in.
        state = None if get_state is None else copy.deepcopy(get_state())
        return found, is_bundle, self._number, state

    def _timed(self, cost: Cost) -> Any:
        begin = time.perf_counter()
        element = next(self._iterator)
        cost[0] += 1
        cost[1] += time.perf_counter() - begin
        cost[2] += 1
        if cost[0] % _WEIGHED == 1:
            cost[3] += size(element)
            cost[4] += 1
        return element

    def _open(self) -> None:
        self._iterator = iterables.open_at(self._root.dataset, self._state)
        if self._state is None and self._number:
            passed = sum(1 for _ in itertools.islice(self._iterator, self._number))
            if passed < self._number:
                raise errors.StateError(
                    f"{self._root.title} has {passed} elements, and the stream stands behind its "
                    f"first {self._number}. Build it as it was when the state was saved."
                )

    def close(self) -> None:
        """Closes the iterator, if that can be closed; one that is being read cannot always."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):  # there is nobody left to whom it matters
                close()


class Own:
    """The elements of an iterable of the user's; its state is the second part of the cursor.

    Args:
      root: the iterable.
      cursor: where to begin.
      put: makes inputs for tasks of workers; None where all is done in this process.
      is_ahead: whether a thread may read ahead of them.
    """

    def __init__(self, root: Upstream, cursor: Cursor, put: Put | None, is_ahead: bool) -> None:
        self._root = root
        self._number, state = cursor
        self._is_told = not self._number or state is not None
        self._put = put
        self._reader = _Reader(root, cursor, put if is_ahead else None)
        self._run: RunAhead[tuple[Any, bool, int, Any]] | None = None
        if put is not None and is_ahead:
            name = "grain_jax iterable"
            self._run = RunAhead(self._reader, 1, name=name, finish=self._reader.close)
        self._most = 1
        self._unsendable: errors.InvalidTypeError | None = None
        self.left_over: list[Skip] = []

    def measure(self, cost: Cost) -> None:
        """Has what reading takes counted there."""
        self._reader.cost = cost

    @property
    def is_ready(self) -> bool:
        """Whether an element is here."""
        return self._run is not None and self._run.has_more(only_results=True)

    def advance(self) -> None:
        """Has the thread read on, if there is one."""
        if self._run is not None:
            self._tell()
            self._run.start()

    def _tell(self) -> None:
        """Says what is read again, before it is."""
        if not self._is_told:
            self._is_told = True
            warnings.warn(
                f"{self._root.title} does not say where it stands, so its first {self._number} "
                "elements are read again and left out. Give what it goes through state_dict and "
                "load_state_dict, or get_state and set_state.",
                stacklevel=2,
            )

    def close(self) -> None:
        """Closes the iterator over the iterable, which was made here."""
        if self._run is None:
            self._reader.close()
            return
        self._run.stop()
        if not self._run.join(_PATIENCE):
            call_within([self._reader.close], _CLOSING)

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run of elements that are here, at least one; PENDING or END."""
        if self._unsendable is not None:
            raise self._unsendable
        if self._run is None:
            if not block:
                return PENDING  # in this thread nothing is read before it is wanted
            self._tell()
            return self._pull_one() if self._put is None else self._pull_sent(1)
        self.advance()
        if not (block or self._run.has_more()):
            return PENDING
        return self._pull_sent(min(most, self._most))

    def _pull_one(self) -> Any:
        try:
            element, _, number, state = self._reader()
        except StopIteration:
            self._reader.close()
            return END
        return Run(Held(Outputs([element])), _Elements(number - 1, [state]), 0, 1)

    def _pull_sent(self, most: int) -> Any:
        """Returns a run of a bundle."""
        elements: list[Any] = []
        states: list[Any] = []
        first, bundle = self._number, None
        try:
            while len(elements) < most:
                found, is_bundle, number, state = self._peeked(bool(elements))
                if is_bundle and elements:
                    break  # it comes by itself
                self._taken(number)
                states.append(state)
                if is_bundle:
                    bundle = found
                    break
                elements.append(found)
        except StopIteration:
            if not elements:
                return END
        if bundle is None:
            bundle = self._bundle(elements, first)
        count = len(bundle)
        self._learn(bundle, count)
        return Run(Held(bundle), _Elements(first, states[:count]), 0, count)

    def _peeked(self, only_if_ready: bool) -> tuple[Any, bool, int, Any]:
        """Returns the next element; StopIteration if there is none, or none that is here."""
        if self._run is None:
            return self._reader()
        if only_if_ready and not self._run.has_more(only_results=True):
            raise StopIteration
        self._peek_number, found = self._run.peek()
        return found

    def _taken(self, number: int) -> None:
        self._number = number
        if self._run is not None:
            self._run.take(self._peek_number)

    def _bundle(self, elements: list[Any], first: int) -> Any:
        """Returns a bundle of the elements, or of those before one that does not pickle."""
        assert self._put is not None
        try:
            return self._put(elements)
        except UnsendableError as error:
            row = error.row
        try:
            _sent(self._put, elements[row : row + 1], self._root, first + row)
        except errors.InvalidTypeError as error:
            if not row:
                raise
            self._unsendable = faults.without_frames(error)  # type: ignore[assignment]
        return self._put(elements[:row])

    def _learn(self, bundle: Any, count: int) -> None:
        """Has as many elements in a bundle, and read ahead, as are small."""
        place = getattr(bundle, "place", None)
        size = 1 if place is None else -(-place[3] // count)
        self._most = max(1, min(2 * self._most, _MOST_ELEMENTS, _MOST_BYTES // size))
        if self._run is not None:
            self._run.buffer_size = 2 * self._most


class Plain(Through):
    """Elements that pass a stage without steps, which costs nobody a task."""

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run, PENDING or END."""
        run = super().pull(most, block)
        if isinstance(run, Run):
            run.places = _Passed(run.places)
        return run


class _Elements:
    """Where neighbouring elements of an iterable stand."""

    def __init__(self, first: int, states: list[Any]) -> None:
        self._first = first
        self._states = states
        self.skips: dict[int, tuple[Skip, ...]] = {}

    def origin(self, row: int) -> Any:
        return None

    def cursor(self, row: int) -> Cursor:
        return self._first + row + 1, self._states[row]

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        return list(range(self._first + begin, self._first + end)), None, None


class _Passed(Around):
    """The same behind a stage."""

    def cursor(self, row: int) -> Cursor:
        cursor = super().cursor(row)
        return ((cursor,), (cursor[0],), 0), 0


def _sent(put: Put, elements: list[Any], root: Upstream, number: int) -> Any:
    try:
        return put(elements)
    except UnsendableError:
        raise errors.InvalidTypeError(
            f"element {number} (counted from 0) of {root.title} cannot be sent to worker "
            f"processes: {culprit.describe(elements[0])}. Let it yield plain data, or leave "
            "mp_prefetch out."
        ) from None


def _is_plain(value: Any) -> bool:
    """Whether all of a detached element is in no hand but ours."""
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return True
    if kind is np.ndarray:
        return bool(value.flags.writeable) and not value.dtype.hasobject
    if kind is dict:
        return all(map(_is_plain, value.values()))
    return kind in (list, tuple) and all(map(_is_plain, value))
