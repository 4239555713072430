"""Results that wait for others, to be the inputs of one task with them."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Collection, Iterable

from grain_jax._execution.engine import slots
from grain_jax._execution.engine.bundle import Bundle
from grain_jax._execution.engine.task import Task
from grain_jax._values.errors import MemoryLimitError

__all__ = ["Pending"]


class Pending:
    """Results that have been asked for, and lie in their slots until somebody looks at them.

    A batch may gather more of them than there are slots. They leave their slots when these are
    wanted for the tasks that the batch waits for.

    Args:
      limit: bytes that results which have left their slots may take; None for an eighth of the
        machine's memory.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._bundles: dict[int, weakref.ref[Bundle]] = {}
        self._limit = slots.memory_of_machine() // 8 if limit is None else limit
        self._moved: dict[int, tuple[weakref.ref[Bundle], int]] = {}
        self._gone: deque[int] = deque()  # from whichever thread lets go of one
        self._bytes = 0
        self._keys = itertools.count()

    def add(self, bundle: Bundle) -> None:
        """Notes that a result has been asked for."""
        self._bundles[bundle.place[0]] = weakref.ref(bundle)

    def move(self, running: Iterable[Task], answers: Collection[object] = ()) -> None:
        """Copies results out of their slots, into memory of this process.

        Args:
          running: tasks whose inputs have to stay where they are.
          answers: results that nobody has asked for yet and that go, too.

        Raises:
          MemoryLimitError: there is no room for them.
        """
        if not self._bundles and not answers:
            return
        fixed = {id(bundle) for task in running for bundle, _ in task.inputs}
        left = {}
        for slot, reference in self._bundles.items():
            bundle = reference()
            if bundle is None or bundle.loaded or bundle.moved:
                continue  # its memory belongs to whoever has looked at it
            if id(bundle) in fixed:
                left[slot] = reference
            else:
                self._move(bundle)
        self._bundles = left
        for answer in answers:
            if isinstance(answer, Bundle) and not answer.moved:
                self._move(answer)

    def _move(self, bundle: Bundle) -> None:
        while self._gone:
            self._bytes -= self._moved.pop(self._gone.popleft())[1]
        size = bundle.place[3]
        if self._bytes + size > self._limit:
            raise MemoryLimitError(
                f"elements that wait for others take {self._bytes + size} bytes of this process's "
                f"memory, and memory_limit is {self._limit}. Gather fewer of them (a smaller "
                "batch, window or number of bins), or raise memory_limit in "
                "MultiprocessingOptions."
            )
        bundle.move()
        key = next(self._keys)
        self._moved[key] = weakref.ref(bundle, lambda _: self._gone.append(key)), size
        self._bytes += size
