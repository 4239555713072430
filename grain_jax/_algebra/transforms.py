"""Transformations: what a user can ask to be done with every record.

Each is an abstract class with one method, or data (`Batch`). They say what to do; `steps` holds
how.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from grain_jax._values import errors, notices, options

__all__ = [
    "Batch",
    "DatasetSelectionMap",
    "Filter",
    "FlatMap",
    "Map",
    "MapWithIndex",
    "RandomMap",
    "TfRandomMap",
    "Transformation",
    "Transformations",
]


class DatasetSelectionMap(abc.ABC):
    """Says which of several datasets has the element at an index, and at which index of its own.

    It has to answer alike whenever it is asked, in workers, too. An index beyond its length stands
    in a later epoch.

    Example:
      >>> class Twice(DatasetSelectionMap):
      ...     def __len__(self):
      ...         return 6
      ...     def __getitem__(self, index):
      ...         return index % 2, index // 2
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns how many elements there are."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """Returns the number of the dataset, and the index in it."""


class Map(abc.ABC):
    """Maps one element to one element.

    Example:
      >>> class Double(Map):
      ...     def map(self, element):
      ...         return 2 * element
    """

    @abc.abstractmethod
    def map(self, element: Any) -> Any:
        """Returns the new element; never None."""


class RandomMap(abc.ABC):
    """Maps one element to one element with a random generator of its own.

    Example:
      >>> class Jitter(RandomMap):
      ...     def random_map(self, element, rng):
      ...         return element + rng.normal()
    """

    @abc.abstractmethod
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns the new element; all draws come from `rng`."""


class TfRandomMap(abc.ABC):
    """A random map under the method name that TensorFlow code shares.

    Example:
      >>> class Noise(TfRandomMap):
      ...     def np_random_map(self, element, rng):
      ...         return element + rng.normal()
    """

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns the new element; all draws come from `rng`."""


class MapWithIndex(abc.ABC):
    """Maps one element to one element, knowing its place in the stream.

    Example:
      >>> import grain_jax as grain
      >>> class Number(MapWithIndex):
      ...     def map_with_index(self, index, element):
      ...         return index, element
      >>> list(grain.load(["a", "b"], num_epochs=1, transformations=[Number()]))
      [(0, 'a'), (1, 'b')]
    """

    @abc.abstractmethod
    def map_with_index(self, index: int, element: Any) -> Any:
        """Returns the new element; `index` is its position, from 0."""


class Filter(abc.ABC):
    """Keeps the elements for which `filter` is true.

    Example:
      >>> import grain_jax as grain
      >>> class Odd(Filter):
      ...     def filter(self, x):
      ...         return x % 2 == 1
      >>> list(grain.load([1, 2, 3], num_epochs=1, transformations=[Odd()]))
      [1, 3]
    """

    @abc.abstractmethod
    def filter(self, element: Any) -> bool:
        """Returns whether to keep the element."""


class FlatMap(abc.ABC):
    """Maps one element to any number of elements, up to `max_fan_out`.

    Attributes:
      max_fan_out: the most elements that one input may give; more are an error.

    Example:
      >>> import grain_jax as grain
      >>> class Words(FlatMap):
      ...     max_fan_out = 100
      ...     def flat_map(self, text):
      ...         return text.split()
      >>> list(grain.load(["to be", "or not"], num_epochs=1, transformations=[Words()]))
      ['to', 'be', 'or', 'not']
    """

    max_fan_out: int

    @abc.abstractmethod
    def flat_map(self, element: Any) -> Sequence[Any]:
        """Returns the new elements, in order; None among them is left out."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Groups consecutive elements and stacks them.

    Attributes:
      batch_size: elements per batch.
      drop_remainder: whether an incomplete batch at the end is dropped.
      batch_fn: makes the batch of a list of elements; None stacks each leaf along a new axis 0.

    Example:
      >>> import grain_jax as grain
      >>> loader = grain.load([1, 2, 3], num_epochs=1, transformations=[Batch(2)])
      >>> [batch.tolist() for batch in loader]
      [[1, 2], [3]]
    """

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    @notices.constructing("batch")
    def __post_init__(self) -> None:
        size = options.check_count("batch_size", self.batch_size, minimum=1)
        object.__setattr__(self, "batch_size", size)
        if self.batch_fn is not None and not callable(self.batch_fn):
            raise errors.InvalidTypeError(
                f"batch_fn must be callable or None, got {self.batch_fn!r}."
            )


Transformation: TypeAlias = Batch | Map | RandomMap | TfRandomMap | Filter | FlatMap | MapWithIndex
Transformations: TypeAlias = Sequence[Transformation]
