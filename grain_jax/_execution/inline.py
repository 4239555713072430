"""The executor of `worker_count=0`: tasks are done in this process when their result is asked for.

What it yields is what worker processes have to equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from grain_jax._algebra import global_random
from grain_jax._datasets.outcomes import Gathered, Outcome
from grain_jax._datasets.program import Program
from grain_jax._execution import reads

__all__ = ["Bundle", "Executor", "Inline", "Outputs"]


class Bundle(Protocol):
    """The outputs of one task."""

    info: Any

    def __len__(self) -> int: ...

    def load(self) -> list[Any]:
        """Returns the outputs."""


class Executor(Protocol):
    """An ordered parallel map over small tasks."""

    capacity: int

    @property
    def finished(self) -> int:
        """How many tasks are done whose results nobody has asked for yet."""

    @property
    def is_broken(self) -> bool:
        """Whether no task will ever be answered, since the program did not load."""

    def put(self, elements: list[Any]) -> Bundle:
        """Returns elements as an input for tasks, which nobody can change any more.

        Raises:
          UnsendableError: naming the first that does not pickle.
        """

    def submit(
        self,
        stage: int,
        payload: Any,
        inputs: Sequence[tuple[Any, Sequence[int]]] = (),
        label: str = "",
    ) -> int:
        """Accepts a task and returns its ticket; never blocks."""

    def result(self, ticket: int, block: bool = True) -> Bundle | None:
        """Returns the outputs; None if they are not there yet and `block` is false."""

    def drop(self, ticket: int) -> None:
        """Gives a ticket up."""

    def cancel(self) -> None:
        """Forgets all tickets."""

    def close(self) -> None:
        """Ends what was started."""


class Outputs:
    """A bundle of what is in this process already."""

    def __init__(self, outputs: list[Any], info: Outcome | None = None) -> None:
        self._outputs = outputs
        self.info = info

    def __len__(self) -> int:
        return len(self._outputs)

    def load(self) -> list[Any]:
        """Returns the outputs."""
        return self._outputs


class Inline:
    """Does every task when its result is asked for.

    Args:
      program: what to run.
      ahead: for how many tasks to come a thread reads the records.
    """

    is_broken = False
    finished = 0

    def __init__(self, program: Program, ahead: int = 0) -> None:
        self.capacity = 1 + ahead
        self._program = program
        self._reads = reads.Reads(program) if ahead else None
        self._tasks: dict[int, tuple[int, Any, Sequence[tuple[Bundle, Sequence[int]]]]] = {}
        self._next = 0

    def put(self, elements: list[Any]) -> Outputs:
        """Returns elements as an input for tasks."""
        return Outputs(elements)

    def submit(
        self,
        stage: int,
        payload: Any,
        inputs: Sequence[tuple[Any, Sequence[int]]] = (),
        label: str = "",
    ) -> int:
        """Keeps the task for later."""
        self._next += 1
        self._tasks[self._next] = stage, payload, inputs
        if self._reads is not None and not isinstance(payload, Gathered):
            self._reads.start(self._next, stage, payload)
        return self._next

    def result(self, ticket: int, block: bool = True) -> Bundle | None:
        """Does the task, if asked to wait for it."""
        if not block:
            return None
        stage, payload, sources_ = self._tasks.pop(ticket)
        ready = None if self._reads is None else self._reads.take(ticket)
        inputs: list[Any] = []
        for bundle, rows in sources_:
            outputs = bundle.load()
            inputs += [outputs[row] for row in rows]
        guard = global_random.preserved() if self._program.seeded else contextlib.nullcontext()
        with guard:
            try:
                return Outputs(*self._program.run(stage, payload, inputs, None, ready))
            finally:
                ready = None  # it may be an exception, whose traceback leads to this frame

    def drop(self, ticket: int) -> None:
        """Forgets a task."""
        self._tasks.pop(ticket, None)
        if self._reads is not None:
            self._reads.forget(ticket)

    def cancel(self) -> None:
        """Forgets what was submitted."""
        self._tasks.clear()
        if self._reads is not None:
            self._reads.drop()

    def close(self) -> None:
        """Gives back what reading took."""
        self.cancel()
        if self._reads is not None:
            self._reads.close()
        self._program.close()
