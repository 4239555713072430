"""PipelineIterator: the dataset iterator that a plan runs in."""

from __future__ import annotations

import copy
import weakref
from typing import Any, TypeVar

from grain_jax._datasets import iterators
from grain_jax._datasets.plan import Plan
from grain_jax._execution import fingerprint, lending, states
from grain_jax._execution.layout import Layout
from grain_jax._execution.pipeline import Pipeline

__all__ = ["PipelineIterator", "run"]

T = TypeVar("T")


class PipelineIterator(iterators.DatasetIterator[T]):
    """Iterates over a plan; see `DatasetIterator`."""

    def __init__(self, plan: Plan, setup: iterators.Setup, layout: Layout) -> None:
        super().__init__()
        self._pipeline = Pipeline(plan, setup, layout)
        self._mark = fingerprint.fingerprint(plan, layout)
        self._options = setup.options
        self._owner: lending.Owner | None = None
        weakref.finalize(self, self._pipeline.close)

    def __next__(self) -> T:
        lending.refuse_lent(self, self._owner)
        element: T = self._pipeline.next()
        return element

    def get_state(self) -> dict[str, Any]:
        """Returns the position after the last element you received, as a JSON value."""
        if self._owner is not None:
            state: dict[str, Any] = self._owner.get_state()
            return state
        return self._state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position that `get_state` returned.

        Raises:
          StateError: if the state is of another pipeline; it shows the difference.
        """
        if self._owner is not None:
            self._owner.set_state(state)
        else:
            self._go_to(state)

    def start_prefetch(self) -> None:
        """Starts workers, if there are any, ahead of the first `next`."""
        if self._owner is not None:
            self._owner.start_prefetch()
        else:
            self._pipeline.advance()

    def close(self) -> None:
        """Ends workers and threads; idempotent."""
        self._pipeline.close()

    def _batch_rows(self) -> tuple[int, int | None] | None:
        pipeline = self._pipeline
        return pipeline.layout.batch_rows(pipeline.plan, pipeline.first)

    def _state(self) -> dict[str, Any]:
        return states.encode(self._pipeline, self._mark)

    def _go_to(self, state: Any) -> None:
        layout, position = states.decode(
            copy.deepcopy(state),
            self._pipeline,
            self._mark,
            lanes=self._options.lanes,
            strict=self._options.strict,
        )
        self._pipeline.layout = layout
        self._pipeline.go_to(position)

    def _lend(self, owner: lending.Owner) -> _Loan:
        lending.refuse_lent(self, self._owner)
        self._owner = owner
        return _Loan(self)


class _Loan:
    """The iterator in the hands of whoever reads it ahead."""

    has_state = True

    def __init__(self, iterator: PipelineIterator[Any]) -> None:
        self._iterator = iterator
        self.next = iterator._pipeline.next

    def state(self) -> Any:
        return self._iterator._state()

    def set_state(self, state: Any) -> None:
        self._iterator._go_to(state)

    def close(self) -> None:
        self._iterator.close()


def run(plan: Plan, setup: iterators.Setup) -> PipelineIterator[Any]:
    """Returns an iterator over a dataset's stream."""
    length = getattr(plan.root, "length", None)
    return PipelineIterator(plan, setup, Layout(length, lanes=setup.options.lanes or 1))


iterators.register(run)
