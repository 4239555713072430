"""MapDataset: random access to elements, described step by step.

A description is immutable; each method returns a new one around a node (see `nodes`).
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np

from grain_jax._algebra import index_maps, selections, sources, steps, transforms
from grain_jax._algebra.selections import Stop
from grain_jax._datasets import iter_dataset, merges, methods, nodes, roots, subsets
from grain_jax._values import errors, options

__all__ = ["MapDataset"]

T = TypeVar("T", covariant=True)

Picked: TypeAlias = "builtins.slice | Sequence[int] | np.ndarray[Any, Any] | MapDataset[int]"
"""What says which elements a slice has."""


class MapDataset(methods.MapMethods, Generic[T]):
    """A dataset with random access to its elements; every method returns a new one.

    Indices beyond the length wrap around: they stand in later epochs. Subclasses define `__len__`
    and `__getitem__`; an element that is None is absent.

    Example:
      >>> ds = MapDataset.range(5).map(lambda x: 10 * x)
      >>> ds[3], ds[7], len(ds)
      (30, 20, 5)
      >>> list(ds[1:4])
      [10, 20, 30]
    """

    _seed: int | None = None
    _depth: int = 0
    _steps: int = 0
    _randoms: int = 0

    _parents: tuple[MapDataset[Any], ...] = ()
    _node: nodes.Node
    _text: str

    def __new__(cls, *args: Any, **kwargs: Any) -> MapDataset[Any]:
        # Here, since a subclass may leave out `super().__init__()`.
        result = super().__new__(cls)
        result._node, result._text = nodes.CustomNode(result), f"{cls.__name__}()"
        return result

    def __init__(self, parents: MapDataset[Any] | Sequence[MapDataset[Any]] = ()) -> None:
        self._parents = (parents,) if isinstance(parents, MapDataset) else tuple(parents)
        if self._parents:
            self._follow(self._parents[0])

    def __repr__(self) -> str:
        return self._text

    def _follow(self, parent: MapDataset[Any]) -> None:
        self._seed, self._depth = parent._seed, parent._depth + 1
        self._steps, self._randoms = parent._steps, parent._randoms

    def _be(self, other: MapDataset[Any]) -> None:
        """Makes this, an object of a class of ours, what a method returns."""
        for name in ("_node", "_text", "_seed", "_depth", "_steps", "_randoms", "_parents"):
            setattr(self, name, getattr(other, name))

    def _then(self, node: nodes.Node, text: str) -> MapDataset[Any]:
        result: MapDataset[Any] = MapDataset(self)
        result._node, result._text = node, f"{self._text}.{text}"
        return result

    @property
    def _is_custom(self) -> bool:
        """Whether a subclass has to say what this is."""
        return isinstance(self._node, nodes.CustomNode) and self._node.dataset is self

    @property
    def _parent(self) -> MapDataset[Any]:
        """The one parent, for subclasses written for Grain."""
        (parent,) = self._parents
        return parent

    @property
    def parents(self) -> Sequence[MapDataset[Any]]:
        """The datasets that this one is made of."""
        return self._parents

    def __len__(self) -> int:
        if self._is_custom:
            raise NotImplementedError(f"{type(self).__name__} defines no __len__")
        return self._node.length

    @overload
    def __getitem__(self, index: Picked) -> MapDataset[T]: ...
    @overload
    def __getitem__(self, index: int) -> T | None: ...
    def __getitem__(self, index: int | Picked) -> T | MapDataset[T] | None:
        try:
            number = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            if not isinstance(index, (builtins.slice, list, np.ndarray, MapDataset)):
                raise errors.InvalidTypeError(
                    f"a dataset is indexed by a whole number, a slice or a list of indices, got "
                    f"{index!r}."
                ) from None
            return self.slice(index)
        if self._is_custom:
            raise NotImplementedError(f"{type(self).__name__} defines no __getitem__")
        if not -(2**63) <= number < 2**63:
            raise errors.OutOfRangeError(f"index {number} does not fit into 64 bits.")
        if not len(self):
            raise errors.OutOfRangeError(f"index {number} of an empty dataset: {self!r}.")
        element: T | None = nodes.element(self._node, number, self._seed or 0)
        return element

    def __iter__(self) -> Iterator[T]:
        return iter(self.to_iter_dataset())

    @staticmethod
    def source(source: Any) -> MapDataset[Any]:
        """Returns the dataset of a data source's records.

        Args:
          source: anything with `__len__` and `__getitem__`: a list, an array, a dict of arrays of
            equal length, a TFDS or Hugging Face source, or one of `grain_jax.sources`.
        """
        adapted = sources.adapt(source)
        result: MapDataset[Any] = MapDataset()
        result._node = nodes.SourceNode(adapted)
        result._text = f"MapDataset.source({adapted.description})"
        return result

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """Returns the dataset of whole numbers that `range` with the same arguments gives."""
        numbers = builtins.range(start) if stop is None else builtins.range(start, stop, step)
        return MapDataset.source(numbers)

    @staticmethod
    def mix(
        datasets: Sequence[MapDataset[T]],
        weights: Sequence[float] | None = None,
        *,
        stop: Stop = "first",
    ) -> MapDataset[T]:
        """Returns the mixture of datasets in proportion to weights, spread evenly.

        A state is one number, and restores on any number of processes.

        Args:
          datasets: the parts.
          weights: one number above 0 for each, of any scale; None mixes equal shares.
          stop: "first" ends where the first dataset does that has no more elements for its share;
            "all" goes on with the others, in proportion, until all elements of all have come;
            "repeat" has no end: parts begin anew.

        Raises:
          InvalidValueError: for weights that are not as many as datasets, or not above 0; for a
            dataset without elements.

        Example:
          >>> even, odd = MapDataset.range(0, 10, 2), MapDataset.range(1, 100, 2)
          >>> list(MapDataset.mix([even, odd], weights=[2, 1]))
          [0, 2, 1, 4, 6, 3, 8]
        """
        parts = merges.checked(MapDataset, "mix", datasets)
        selection = selections.mixture(weights, [len(part) for part in parts], stop)
        text = f"mix(weights={list(weights)})" if weights is not None else "mix"
        return _merged(parts, selection, text)

    @staticmethod
    def concatenate(datasets: Sequence[MapDataset[T]]) -> MapDataset[T]:
        """Returns all elements of one dataset after the other.

        Raises:
          InvalidValueError: if a dataset without an end comes before another one.

        Example:
          >>> list(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(10, 12)]))
          [0, 1, 2, 10, 11]
        """
        parts = merges.checked(MapDataset, "concatenate", datasets)
        lengths = tuple(len(part) for part in parts)
        return _merged(parts, selections.Concatenation(lengths), "concatenate")

    @staticmethod
    def select_from_datasets(
        datasets: Sequence[MapDataset[T]], selection_map: transforms.DatasetSelectionMap
    ) -> MapDataset[T]:
        """Returns the elements that a map of indices chooses from datasets, one by one.

        Args:
          datasets: the parts.
          selection_map: says for each index which dataset, and the index in it.
        """
        parts = merges.checked(MapDataset, "select_from_datasets", datasets)
        selection = selections.Given(selection_map, len(parts))
        return _merged(parts, selection, f"select_from_datasets({type(selection_map).__name__})")

    @staticmethod
    def zip(datasets: Sequence[MapDataset[Any]]) -> MapDataset[Any]:
        """Returns tuples of the elements that datasets of equal length have at the same index.

        An element that one of them lacks is absent.

        Raises:
          InvalidValueError: if their lengths differ.

        Example:
          >>> list(MapDataset.zip([MapDataset.range(3), MapDataset.range(10, 13)]))
          [(0, 10), (1, 11), (2, 12)]
        """
        parts = merges.checked(MapDataset, "zip", datasets)
        node = merges.ZippedNode(tuple(part._node for part in parts))
        return _over(parts, node, f"zip({len(parts)} datasets)")

    def map(self, transform: transforms.Map | Callable[[T], Any]) -> MapDataset[Any]:
        """Returns the dataset with `transform` applied to every element."""
        return self._with("map", transform)

    def random_map(
        self,
        transform: transforms.RandomMap | Callable[[T, np.random.Generator], Any],
        *,
        seed: int | None = None,
    ) -> MapDataset[Any]:
        """Returns the dataset with a random `transform` applied to every element.

        The generator depends on seed, index (which goes on counting over epochs) and on how many
        random steps come before.

        Args:
          transform: the function of an element and a generator.
          seed: from 0; None takes the seed of `seed()`.

        Raises:
          InvalidValueError: if there is no seed.
        """
        seed = methods.random_seed("random_map", seed, self._seed)
        return self._with("random_map", transform, seed)

    def map_with_index(
        self, transform: transforms.MapWithIndex | Callable[[int, T], Any]
    ) -> MapDataset[Any]:
        """Returns the dataset with a `transform` of index and element applied."""
        return self._with("map_with_index", transform)

    def filter(self, transform: transforms.Filter | Callable[[T], bool]) -> MapDataset[T]:
        """Returns the dataset where elements for which `transform` is false are None."""
        return self._with("filter", transform)

    def flat_map(self, transform: transforms.FlatMap) -> MapDataset[Any]:
        """Returns the dataset with each element replaced by up to `max_fan_out` ones.

        Element i is output i % max_fan_out of element i // max_fan_out; what is missing is None.
        """
        if not isinstance(transform, transforms.FlatMap):
            raise errors.InvalidTypeError(
                f"flat_map takes a transforms.FlatMap, whose max_fan_out fixes the length; "
                f"got {transform!r}."
            )
        step = steps.step_for("flat_map", transform, number=self._steps + 1)
        assert isinstance(step, steps.FlatMapStep)
        fan_out = options.check_count("max_fan_out", step.max_fan_out, minimum=1)
        node = nodes.FlatMapNode(self._node, step, fan_out, self._draws(step))
        return self._stepped(node, step)

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[T]], Any] | None = None,
    ) -> MapDataset[Any]:
        """Returns the dataset of batches of consecutive elements.

        Raises:
          InvalidValueError: after a filter, or of a list with None among its elements, which leave
            gaps: batch the iter dataset instead.
        """
        if self._node.has_gaps:
            raise errors.InvalidValueError(
                "batch cannot follow a filter or flat_map on a MapDataset, nor records None of its "
                "source, which leave gaps. Write `ds.to_iter_dataset().batch(...)`: a stream "
                "closes them."
            )
        batch = transforms.Batch(batch_size, drop_remainder, batch_fn)
        step = steps.step_for("batch", batch, number=self._steps + 1)
        assert isinstance(step, steps.BatchStep)
        return self._stepped(nodes.BatchNode(self._node, step, self._draws(step)), step)

    def seed(self, seed: int) -> MapDataset[T]:
        """Returns the dataset with a seed for the random steps and shuffles after it."""
        seeded = self._then(self._node, f"seed({seed})")
        seeded._seed, seeded._depth = options.check_any_seed(seed), 0
        return seeded

    def shuffle(self, seed: int | None = None) -> MapDataset[T]:
        """Returns the dataset in an order that `seed` fixes; every epoch has one of its own."""
        seed = methods.seed_for("shuffle", seed, self._seed, self._depth + 1)
        shuffle = index_maps.Shuffle(len(self), seed)
        return self._reordered(shuffle, f"shuffle(seed={seed})")

    def slice(self, sl: Picked) -> MapDataset[T]:
        """Returns the dataset of the elements that a slice picks, the same ones in every epoch.

        Slices that share no element of a shuffled dataset share none over all epochs. Random steps
        draw anew in each epoch, and a `shuffle` behind the slice reorders its elements in each.

        Args:
          sl: a `slice`; or a list, an array or a dataset of indices, in any order and as often as
            they are there. A dataset is read here, once; its absent elements are none.

        Raises:
          OutOfRangeError: for an index of no element.

        Example:
          >>> list(MapDataset.range(10, 20).slice([3, -1, 3]))
          [13, 19, 13]
        """
        index_map, text = subsets.index_map_of(sl, len(self))
        return self._then(nodes.IndexNode(subsets.closed(self._node), index_map), text)

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset[T]:
        """Returns the dataset over and over.

        Args:
          num_epochs: how often; None without an end.
          reseed_each_epoch: whether shuffles and random steps before it differ in each epoch.
        """
        repeat = index_maps.Repeat(len(self), num_epochs, reseed_each_epoch)
        return self._reordered(
            repeat, "repeat()" if num_epochs is None else f"repeat({num_epochs})"
        )

    def to_iter_dataset(
        self, read_options: options.ReadOptions | None = None, *, allow_nones: bool = False
    ) -> iter_dataset.IterDataset[T]:
        """Returns the stream of the elements in order.

        Args:
          read_options: how records are read; None decides by what the first reads cost.
          allow_nones: whether absent elements come as None; otherwise they are left out.
        """
        if not isinstance(read_options, options.ReadOptions | None):
            raise errors.InvalidTypeError(
                f"read_options must be a grain_jax.ReadOptions or None, got {read_options!r}."
            )
        root = roots.NodeRoot(self._node, read_options, allow_nones, seed=self._seed or 0)
        return iter_dataset.stream_of(
            root, parents=(self,), seed=self._seed, steps=self._steps, randoms=self._randoms
        )

    def _with(self, kind: str, transform: Any, seed: int | None = None) -> MapDataset[Any]:
        step = steps.step_for(
            kind, transform, number=self._steps + 1, random_number=self._randoms, seed=seed
        )
        result = self._stepped(nodes.StepNode(self._node, step, self._draws(step)), step)
        result._randoms += step.is_random
        return result

    def _draws(self, step: steps.Step) -> nodes.Draws | None:
        return nodes.Draws.of(step, self._seed or 0, self._steps + 1)

    def _stepped(self, node: nodes.Node, step: steps.Step) -> MapDataset[Any]:
        result = self._then(node, step.title.partition(": ")[2])
        result._steps += 1
        return result

    def _reordered(self, index_map: index_maps.IndexMap, text: str) -> MapDataset[T]:
        return self._then(nodes.IndexNode(self._node, index_map), text)


def _merged(
    parts: Sequence[MapDataset[Any]], selection: selections.Selection, text: str
) -> MapDataset[Any]:
    title = text.partition("(")[0]
    node = merges.SelectedNode(tuple(part._node for part in parts), selection, title)
    return _over(parts, node, f"{text} of {len(parts)} datasets")


def _over(parts: Sequence[MapDataset[Any]], node: nodes.Node, text: str) -> MapDataset[Any]:
    result: MapDataset[Any] = MapDataset(parts)
    result._node, result._text = node, f"MapDataset.{text}"
    # Steps behind the merge have numbers that no step of any part has: they draw otherwise.
    result._depth = 1 + max(part._depth for part in parts)
    result._steps = max(part._steps for part in parts)
    result._randoms = max(part._randoms for part in parts)
    result._seed = next((part._seed for part in parts if part._seed is not None), None)
    return result
