"""DatasetIterator, and who makes one: the floor above registers how plans run."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from grain_jax._datasets.plan import Plan
from grain_jax._values import checkpointable, closing, errors, options
from grain_jax._values.stats import Stats

__all__ = ["DatasetIterator", "Setup", "register", "run"]

T = TypeVar("T")
Self = TypeVar("Self", bound="DatasetIterator[Any]")


class DatasetIterator(
    closing.Closing, checkpointable.StatefulCheckpointable, Iterator[T], abc.ABC, Generic[T]
):
    """An iterator over a dataset whose position can be saved and restored.

    Subclasses define `__next__`, `get_state` and `set_state`.

    Example:
      >>> import grain_jax as grain
      >>> iterator = iter(grain.MapDataset.range(5).to_iter_dataset())
      >>> next(iterator), next(iterator)
      (0, 1)
      >>> state = iterator.get_state()
      >>> next(iterator)
      2
      >>> iterator.set_state(state)
      >>> list(iterator)
      [2, 3, 4]
    """

    _parents: tuple[DatasetIterator[Any], ...] = ()

    number: int | None = None
    """Which epoch this is, of the iterators that `epochs()` gives; None for others."""

    def __init__(self, parents: DatasetIterator[Any] | Sequence[DatasetIterator[Any]] = ()) -> None:
        self._parents = (parents,) if isinstance(parents, DatasetIterator) else tuple(parents)

    @property
    def _parent(self) -> DatasetIterator[Any]:
        """The one parent, for subclasses written for Grain."""
        (parent,) = self._parents
        return parent

    def __iter__(self: Self) -> Self:
        return self

    @abc.abstractmethod
    def __next__(self) -> T:
        """Returns the next element."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Returns the position after the last element returned, as a JSON value."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position that `get_state` returned."""

    def start_stats(self) -> None:
        """Begins to measure where the time goes; see `Stats`.

        Raises:
          InvalidTypeError: for an iterator of the user's own class that does not.
        """
        raise errors.InvalidTypeError(
            f"{type(self).__name__} measures nothing. Measure the iterator of the dataset that it "
            "is made of, or define start_stats() and stats()."
        )

    def stats(self) -> Stats:
        """Returns where the time has gone since `start_stats`, or since the start where it is on.

        Raises:
          InvalidValueError: if nothing is measured.
        """
        self.start_stats()
        raise NotImplementedError

    def start_prefetch(self) -> None:
        """Starts work ahead of the first `next`, where the iterator works ahead at all."""
        for parent in self._parents:
            parent.start_prefetch()

    def close(self) -> None:
        """Ends workers and threads; the iterator cannot be used afterwards."""
        for parent in self._parents:
            parent.close()


@dataclasses.dataclass(frozen=True)
class Setup:
    """How a plan is run, apart from what it yields.

    Attributes:
      options: worker processes and buffers; the lanes in it do fix the order.
      ahead: how many elements a thread makes ahead of the trainer's.
      sequential: whether the user asked for workers that take a part of the records each: there are
        none here, and states of those of Grain are refused.
      epoch: the positions of one epoch, the first and the one behind the last; None for all.
    """

    options: options.MultiprocessingOptions = dataclasses.field(
        default_factory=options.MultiprocessingOptions
    )
    ahead: int = 0
    sequential: bool = False
    epoch: tuple[int, int] | None = None


_runners: list[Callable[[Plan, Setup], DatasetIterator[Any]]] = []


def register(runner: Callable[[Plan, Setup], DatasetIterator[Any]]) -> None:
    """Says how plans are run; the execution floor calls this when it is imported."""
    _runners[:] = [runner]


def run(plan: Plan, setup: Setup) -> DatasetIterator[Any]:
    """Returns an iterator over the stream that a plan describes.

    Raises:
      ClosedError: in a process that has not imported `grain_jax._execution`, such as a worker.
    """
    if not _runners:
        raise errors.ClosedError(
            "datasets are not iterated inside worker processes: index a MapDataset instead"
        )
    return _runners[0](plan, setup)
