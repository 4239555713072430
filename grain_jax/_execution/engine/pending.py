"""Results that wait for others, to be the inputs of one task with them."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable

from grain_jax._execution.engine.bundle import Bundle
from grain_jax._execution.engine.task import Task

__all__ = ["Pending"]


class Pending:
    """Results that have been asked for, and lie in their slots until somebody looks at them.

    A batch may gather more of them than there are slots. They leave their slots when these are
    wanted for the tasks that the batch waits for.
    """

    def __init__(self) -> None:
        self._bundles: dict[int, weakref.ref[Bundle]] = {}

    def add(self, bundle: Bundle) -> None:
        """Notes that a result has been asked for."""
        self._bundles[bundle.place[0]] = weakref.ref(bundle)

    def move(self, running: Iterable[Task], answers: Collection[object] = ()) -> None:
        """Copies results out of their slots, into memory of this process.

        Args:
          running: tasks whose inputs have to stay where they are.
          answers: results that nobody has asked for yet and that go, too.
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
                bundle.move()
        self._bundles = left
        for answer in answers:
            if isinstance(answer, Bundle):
                answer.move()
