"""IterDataset: a stream of elements, described step by step.

A description is immutable; each method returns a new one. It is a root, steps, and perhaps the
place up to which worker processes run them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from grain_jax._algebra import selections, steps, transforms
from grain_jax._algebra.groupings import blend
from grain_jax._algebra.groupings import mix as mixes
from grain_jax._algebra.groupings.base import Grouping
from grain_jax._algebra.groups import GroupStep
from grain_jax._datasets import iterables, iterators, merges, methods, shards
from grain_jax._datasets.description import Description
from grain_jax._datasets.plan import Grouped, Plan, Root, Upstream
from grain_jax._values import dataset_options, errors, options

__all__ = ["IterDataset", "plan_of", "stream_of"]

T = TypeVar("T", covariant=True)

_HINT = "ds.to_iter_dataset() for a MapDataset"


class IterDataset(methods.StreamMethods, Generic[T]):
    """A stream of elements; every method returns a new one.

    Subclasses define `__iter__`, which returns a `DatasetIterator`.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(5).to_iter_dataset().filter(lambda x: x % 2 == 0).batch(2)
      >>> [batch.tolist() for batch in ds]
      [[0, 2], [4]]
    """

    _parents: tuple[Any, ...] = ()
    _description: Description
    _text: str

    def __new__(cls, *args: Any, **kwargs: Any) -> IterDataset[Any]:
        # Here, since a subclass may leave out `super().__init__()`.
        result = super().__new__(cls)
        result._description, result._text = Description(Upstream(result)), f"{cls.__name__}()"
        return result

    def __init__(self, parents: Any = ()) -> None:
        self._parents = tuple(parents) if isinstance(parents, Sequence) else (parents,)
        if self._parents and self._is_custom:
            seed = _seed_of(self._parents[0])
            self._description = dataclasses.replace(self._description, seed=seed)

    def __repr__(self) -> str:
        return self._text

    @property
    def parents(self) -> Sequence[Any]:
        """The datasets that this one is made of."""
        return self._parents

    @property
    def _parent(self) -> Any:
        """The one parent, for subclasses written for Grain."""
        (parent,) = self._parents
        return parent

    def __iter__(self) -> iterators.DatasetIterator[T]:
        if self._is_custom:
            raise NotImplementedError(f"{type(self).__name__} defines no __iter__")
        return self._run(None)

    def _run(self, epoch: tuple[int, int] | None) -> iterators.DatasetIterator[T]:
        """Returns an iterator over the positions of one epoch; None: over all."""
        return iterators.run(plan_of(self), self._description.whole_setup(epoch))

    @property
    def _is_custom(self) -> bool:
        root = self._description.root
        return isinstance(root, Upstream) and root.dataset is self

    def _be(self, other: IterDataset[Any]) -> None:
        """Makes this, an object of a class of ours, what a method returns."""
        self._description, self._text = other._description, other._text

    def _make_of(
        self,
        parents: Sequence[IterDataset[Any]],
        grouping: Grouping,
        text: str,
        make: Callable[[list[Any], Any], Any] | None = None,
        function: Callable[..., Any] | None = None,
        is_fresh: bool = False,
    ) -> None:
        """Makes this the stream of what a grouping takes of other streams.

        Args:
          parents: the streams.
          grouping: decides which of their elements make an element of this one.
          text: what messages call the operator.
          make: makes an element of those of a group, and of what the grouping laid out for them;
            None where each group is one element, which is passed on as it is.
          function: the user's, if `make` calls one.
          is_fresh: whether nobody else has a hold on what `make` returns, as on new arrays.

        Raises:
          InvalidTypeError: for a parent that is no stream.
        """
        merges.checked(IterDataset, text.partition("(")[0], parents, _HINT)
        abouts = [parent._description for parent in parents]
        numbered = max(about.numbered for about in abouts)
        title = f"step {numbered + 1}: {text}"
        step = None if make is None else GroupStep(make, title, function, is_fresh)
        self._description = Description(
            Grouped(tuple(map(plan_of, parents)), grouping, step, title),
            seed=next((about.seed for about in abouts if about.seed is not None), None),
            randoms=max(about.randoms for about in abouts),
            numbered=numbered + 1,
            below=tuple(setup for about in abouts for setup in about.setups),
            shards=shards.alike([about.shards for about in abouts], text),
            options=functools.reduce(
                dataset_options.DatasetOptions.merge, (about.options for about in abouts)
            ),
            ahead=max(about.ahead for about in abouts),
        )
        self._text = f"{parents[0]!r}.{text}" if len(parents) == 1 else f"{text}({parents!r})"

    @staticmethod
    def from_iterable(
        factory: Callable[[], Iterable[Any]] | Iterable[Any],
    ) -> IterDataset[Any]:
        """Returns the stream of what an iterable of your own yields: a generator, a streaming set.

        It is gone through in this process, in a thread of its own where worker processes do what
        follows, so that its elements have to pickle there. Its position is part of a state if it,
        or its iterator, has `state_dict` and `load_state_dict` or `get_state` and `set_state`, of
        JSON values. Any other one is gone through again from its start as a state is restored, and
        a warning says how many elements that are.

        Args:
          factory: returns the iterable, a new one for each iteration; or an iterable that can be
            gone through again and again, such as a data set of Hugging Face's in streaming form.

        Raises:
          InvalidTypeError: for what can be gone through only once, such as a generator.

        Example:
          >>> import grain_jax as grain
          >>> def count():
          ...     yield from range(5)
          >>> list(grain.IterDataset.from_iterable(count).map(lambda x: 10 * x))
          [0, 10, 20, 30, 40]
        """
        made = iterables.Made(factory)
        result: IterDataset[Any] = IterDataset()
        result._description, result._text = Description(Upstream(made, rereads=True)), made.title
        return result

    @staticmethod
    def mix(
        datasets: Sequence[IterDataset[T]] | Mapping[str, IterDataset[T]],
        weights: Sequence[float] | Mapping[str, float] | None = None,
        *,
        stop: selections.Stop = "first",
        weigh: Callable[[T], int] | None = None,
    ) -> IterDataset[T]:
        """Returns the mixture of streams in proportion to weights, spread evenly.

        Parts by name may have other weights when a state is restored, be more, or fewer: each goes
        on where it was, new ones begin, and shares count from there on. `mixture_counts` of the
        iterator says how many elements of each part there have been.

        Args:
          datasets: the parts, or parts by name, which messages and states then show.
          weights: one number above 0 for each, of any scale, by name if the parts have names; None
            mixes equal shares.
          stop: "first" ends where a stream has no element that is wanted of it; "all" goes on with
            the others, in proportion, until all have ended; "repeat" has no end: parts begin anew.
          weigh: says how much an element counts, as a whole number: `lambda e: len(e["tokens"])`.
            The next element comes from the part whose share lags most behind its weight, the first
            of equals. None counts each as 1.

        Raises:
          InvalidValueError: for weights that are not one for each dataset, or not above 0.
          NoElementsError: as elements come, for a part without any that is to be repeated.

        Example:
          >>> import grain_jax as grain
          >>> even = grain.MapDataset.range(0, 10, 2).to_iter_dataset()
          >>> odd = grain.MapDataset.range(1, 100, 2).to_iter_dataset()
          >>> list(grain.IterDataset.mix({"even": even, "odd": odd}, {"even": 2, "odd": 1}))
          [0, 2, 1, 4, 6, 3, 8]
        """
        names, given, shares = mixes.named(datasets, weights)
        parts = merges.checked(IterDataset, "mix", given, _HINT)
        whole = selections.whole_weights(shares, len(parts))
        if selections.check_stop(stop) == "first" and weigh is None:
            grouping: Grouping = mixes.Mix(whole, names)
        else:
            if weigh is not None and not callable(weigh):
                raise errors.InvalidTypeError(
                    f"weigh must be a function of an element, got {weigh!r}. Write "
                    'weigh=lambda e: len(e["tokens"]), say.'
                )
            grouping = blend.Blend(whole, names, stop, weigh)
        result: IterDataset[T] = IterDataset(parts)
        shown = [] if weights is None else [f"weights={weights!r}"]
        shown += [f"stop={stop!r}"] * (stop != "first") + ["by weight"] * (weigh is not None)
        result._make_of(parts, grouping, f"mix({', '.join(shown)})")
        return result

    def map(self, transform: transforms.Map | Callable[[T], Any]) -> IterDataset[Any]:
        """Returns the stream with `transform` applied to every element."""
        return self._with("map", transform)

    def random_map(
        self,
        transform: transforms.RandomMap | Callable[[T, np.random.Generator], Any],
        *,
        seed: int | None = None,
    ) -> IterDataset[Any]:
        """Returns the stream with a random `transform` applied to every element.

        The generator depends on the seed, on the element's place in the stream (after a batch that
        of its last record) and on how many random steps come before.

        Raises:
          InvalidValueError: if there is no seed.
        """
        seed = methods.random_seed("random_map", seed, self._description.seed)
        return self._with("random_map", transform, seed)

    def map_with_index(
        self, transform: transforms.MapWithIndex | Callable[[int, T], Any]
    ) -> IterDataset[Any]:
        """Returns the stream with a `transform` applied to every element and its number, from 0."""
        return self._with("map_with_index", transform)

    def filter(self, transform: transforms.Filter | Callable[[T], bool]) -> IterDataset[T]:
        """Returns the stream of the elements for which `transform` is true."""
        return self._with("filter", transform)

    def flat_map(
        self, transform: transforms.FlatMap | Callable[[T], Sequence[Any]]
    ) -> IterDataset[Any]:
        """Returns the stream where those that `transform` returns replace each element."""
        return self._with("flat_map", transform)

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[T]], Any] | None = None,
    ) -> IterDataset[Any]:
        """Returns the stream of batches of `batch_size` consecutive elements.

        Args:
          batch_size: elements per batch.
          drop_remainder: whether an incomplete last batch is dropped.
          batch_fn: makes the batch of a list of elements; None stacks each leaf along a new axis 0.
        """
        return self._with("batch", transforms.Batch(batch_size, drop_remainder, batch_fn))

    def seed(self, seed: int) -> IterDataset[T]:
        """Returns the stream with a seed for the random steps after it."""
        return self._then(f"seed({seed})", seed=options.check_any_seed(seed))

    def mp_prefetch(
        self,
        options: options.MultiprocessingOptions | None = None,  # the name that Grain gives it
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
    ) -> IterDataset[T]:
        """Returns the same stream, with all steps so far done by worker processes, ahead of time.

        Args:
          options: number of workers, buffers, lanes; None takes one worker.
          worker_init_fn: see `MultiprocessingOptions`; wins over the one in `options`.
          sequential_slice: accepted for compatibility: the order does not depend on the workers.

        Raises:
          InvalidValueError: where workers have been asked for before.
        """
        if self._description.remote is not None:
            raise errors.InvalidValueError(
                "mp_prefetch is already there, and a stream has one set of workers. Write it once, "
                "after the last step that workers shall do."
            )
        chosen = _checked(options)
        if worker_init_fn is not None:
            chosen = dataclasses.replace(chosen, worker_init_fn=worker_init_fn)
        setup = iterators.Setup(chosen, sequential=bool(sequential_slice))
        text = f"mp_prefetch(num_workers={setup.options.num_workers})"
        return self._then(text, remote=len(self._description.steps), setup=setup)

    def prefetch(self, multiprocessing_options: options.MultiprocessingOptions) -> IterDataset[T]:
        """Returns `mp_prefetch(multiprocessing_options)`; the older name."""
        return self.mp_prefetch(multiprocessing_options)

    def _with(self, kind: str, transform: Any, seed: int | None = None) -> IterDataset[Any]:
        about = self._description
        step = steps.step_for(
            kind,
            transform,
            number=about.numbered + 1,
            random_number=about.randoms,
            seed=seed,
            by_position=False,
        )
        return self._then(
            step.title.partition(": ")[2],
            steps=(*about.steps, step),
            numbered=about.numbered + 1,
            randoms=about.randoms + step.is_random,
        )

    def _then(self, text: str, **changes: Any) -> IterDataset[Any]:
        result: IterDataset[Any] = IterDataset(self)
        result._description = dataclasses.replace(self._description, **changes)
        result._text = f"{self._text}.{text}"
        return result


def stream_of(
    root: Root, *, parents: Sequence[Any], seed: int | None, steps: int, randoms: int
) -> IterDataset[Any]:
    """Returns the stream of a root's elements.

    Args:
      root: where elements come from.
      parents: the datasets that it is made of.
      seed: for random steps to come.
      steps: how many steps the root contains.
      randoms: how many of them are random.
    """
    result: IterDataset[Any] = IterDataset(parents)
    result._description = Description(root, seed=seed, randoms=randoms, numbered=steps)
    if parents:
        result._text = f"{parents[0]!r}.to_iter_dataset()"
    return result


def plan_of(dataset: IterDataset[Any]) -> Plan:
    """Returns the pipeline of a dataset as data."""
    return dataset._description.plan()


def _checked(given: options.MultiprocessingOptions | None) -> options.MultiprocessingOptions:
    if given is None:
        return options.MultiprocessingOptions(num_workers=1)
    if not isinstance(given, options.MultiprocessingOptions):
        raise errors.InvalidTypeError(
            f"mp_prefetch takes a grain_jax.MultiprocessingOptions, got {given!r}. Write "
            "mp_prefetch(grain_jax.MultiprocessingOptions(num_workers=...))."
        )
    return given


def _seed_of(parent: Any) -> int | None:
    """Returns the seed that a parent has for random steps to come."""
    if isinstance(parent, IterDataset):
        return parent._description.seed
    seed: int | None = getattr(parent, "_seed", None)
    return seed
