"""Buckets: batches of sequences of similar length."""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import padding, pieces
from grain_jax._algebra.groupings.base import MANY, Group, Grouper, Grouping, Measure, Restart
from grain_jax._algebra.stacking import stack
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._values import errors, options

__all__ = ["BucketIterDataset"]

_MOST_WANTED = 64


class BucketIterDataset(IterDataset[Any]):
    """Batches of elements whose lengths are in one range; see `IterDataset.bucket_by_length`."""

    def __init__(
        self,
        parent: IterDataset[Any],
        length: str | Callable[[Any], int],
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        features: Sequence[str] | None = None,
        padding: Any = 0,
        mask: bool = True,
        window: int = 4096,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        super().__init__(parent)
        bounds = _boundaries(boundaries)
        sizes = _sizes(batch_sizes, bounds)
        name = length if isinstance(length, str) else None
        if name is None and not callable(length):
            raise errors.InvalidTypeError(
                f"length must be the name of a feature or a function, got {length!r}."
            )
        if batch_fn is not None and not callable(batch_fn):
            raise errors.InvalidTypeError(f"batch_fn must be a function, got {batch_fn!r}.")
        buckets = _Buckets(
            boundaries=bounds,
            sizes=sizes,
            window=options.check_count("window", window, minimum=1),
            drop=bool(drop_remainder),
            name=name,
            function=None if isinstance(length, str) else length,
        )
        make: Any
        if batch_fn is not None:
            make = _ByUser(batch_fn)
        else:
            make = _padding(features, name, padding, mask, bounds)
        text = f"bucket_by_length({list(bounds)}, {list(sizes)})"
        self._make_of([parent], buckets, text, make, batch_fn, is_fresh=batch_fn is None)


def _boundaries(given: Any) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or not len(given):
        raise errors.InvalidTypeError(
            f"boundaries must be a list of lengths, got {given!r}. Write [64, 128, 256], say."
        )
    found = tuple(
        options.check_count(f"boundary {place}", bound, minimum=1)
        for place, bound in enumerate(given)
    )
    if any(map(operator.ge, found, found[1:])):
        raise errors.InvalidValueError(f"boundaries must grow from one to the next, got {found}.")
    return found


def _sizes(given: Any, bounds: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str):
        given = [given] * len(bounds)
    if len(given) not in (len(bounds), len(bounds) + 1):
        raise errors.InvalidValueError(
            f"batch_sizes has {len(given)} sizes for {len(bounds)} boundaries: {list(given)!r}. "
            "Give one for each; and one more, if there are elements above the last boundary."
        )
    return tuple(
        options.check_count(f"batch size {place}", size, minimum=1)
        for place, size in enumerate(given)
    )


@dataclasses.dataclass(frozen=True)
class _Buckets(Grouping):
    """Elements of one bucket each. Restart points are in the middle of what fills buckets.

    The restart point is before the oldest element that waits. The grouping's own numbers there are,
    for each bucket, how many elements before that point are in a batch with some behind it, and how
    far before it the first of these is; and how many batches of elements behind it have gone out.
    A grouper makes neither again.
    """

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    window: int
    drop: bool
    name: str | None
    function: Callable[[Any], int] | None

    @property
    def wanted(self) -> int:  # type: ignore[override]
        """No batch is made of fewer, but for the last ones."""
        return min(*self.sizes, _MOST_WANTED)

    @property
    def measure(self) -> Measure:  # type: ignore[override]
        """Returns what says which bucket an element belongs to."""
        is_open = len(self.sizes) > len(self.boundaries)
        return _Bucket(self.boundaries, is_open, self.name, self.function)

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that all buckets are empty, and nothing has gone out."""
        return (0,) * (2 * len(self.sizes) + 1)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that goes on there."""
        return _Filling(self, kept)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns what a state says of the buckets."""
        for size, count, age in zip(self.sizes, kept, kept[len(self.sizes) :], strict=False):
            if count >= size or age > self.window or count > age:
                raise errors.StateError(
                    f"the state says that {count} elements, the first of them {age} back, are in a "
                    f"bucket of {size} with a window of {self.window}"
                )
        return kept


@dataclasses.dataclass(frozen=True)
class _Bucket:
    """A measure: the number of an element's bucket."""

    boundaries: tuple[int, ...]
    is_open: bool
    name: str | None
    function: Callable[[Any], int] | None

    def __call__(self, element: Any) -> int:
        length = self._length(element)
        bucket = bisect.bisect_left(self.boundaries, length)
        if bucket == len(self.boundaries) and not self.is_open:
            raise errors.InvalidValueError(
                f"an element has length {length}, and the last boundary of bucket_by_length is "
                f"{self.boundaries[-1]}. Give one more batch size, for longer ones, or leave them "
                "out in a filter before."
            )
        return bucket

    def _length(self, element: Any) -> int:
        if self.function is None:
            assert self.name is not None
            padding.check_features(element, [self.name], "bucket_by_length", False)
            array = pieces.as_array(element[self.name], f"the feature {self.name!r}")
            if not array.ndim:
                raise errors.InvalidValueError(
                    f"the feature {self.name!r} is a number, and has no length."
                )
            return len(array)
        return options.check_count("what length returns", self.function(element), minimum=0)


@dataclasses.dataclass(slots=True)
class _Batch:
    """A batch that is being filled.

    Attributes:
      first: number of its first element; below 0 if it was there before the grouper began.
      before: how many of its elements were.
      numbers: the others.
      is_out: whether it has been handed out; otherwise it was too short.
    """

    first: int
    before: int
    numbers: list[int]
    is_out: bool = True


class _Filling(Grouper):
    def __init__(self, of: _Buckets, kept: tuple[int, ...]) -> None:
        super().__init__()
        self._of = of
        count = len(of.sizes)
        self._batches: list[_Batch | None] = [
            _Batch(-age, before, []) if before else None
            for before, age in zip(kept[:count], kept[count:-1], strict=True)
        ]
        self._passed = kept[-1]  # batches that have gone out before, and are made again
        # For each bucket those batches, complete, that have elements behind the restart point.
        self._complete: list[list[_Batch]] = [[] for _ in of.sizes]
        self._count = 0
        self._over = False

    def wants(self) -> tuple[int, int] | None:
        return None if self._over else (0, MANY)

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        for bucket in measures or ():
            batch = self._batches[bucket]
            if batch is None:
                batch = self._batches[bucket] = _Batch(self._count, 0, [])
            batch.numbers.append(self._count)
            self._count += 1
            if batch.before + len(batch.numbers) == self._of.sizes[bucket]:
                self._complete_batch(bucket, batch, is_out=True)
            self._let_out(self._of.window)

    def end(self, parent: int) -> None:
        self._over = True
        self._let_out(0)

    def _let_out(self, window: int) -> None:
        """Lets those out that have waited so long, be they full or not; the oldest first."""
        while True:
            waiting = [(b.first, k) for k, b in enumerate(self._batches) if b is not None]
            if not waiting or self._count - min(waiting)[0] < window:
                return
            _, bucket = min(waiting)
            batch = self._batches[bucket]
            assert batch is not None
            self._complete_batch(bucket, batch, is_out=not self._of.drop)

    def _complete_batch(self, bucket: int, batch: _Batch, *, is_out: bool) -> None:
        self._batches[bucket] = None
        batch.is_out = is_out
        self._complete[bucket].append(batch)
        if not is_out or batch.before:
            return  # one of which elements came before the restart point has gone out by then
        if self._passed:
            self._passed -= 1
            return
        members = [(0, number, number + 1) for number in batch.numbers]
        self.groups.append(Group(members, bucket, self._restart()))

    def _restart(self) -> Restart:
        """Returns the point behind the batch that has gone out: before the oldest that waits."""
        waiting = [batch.first for batch in self._batches if batch is not None]
        point = min(waiting, default=self._count)
        counts, ages, out = [], [], 0
        for complete in self._complete:
            # What is before the point altogether does not matter any more.
            while complete and (not complete[0].numbers or complete[0].numbers[-1] < point):
                del complete[0]
            count = age = 0
            if complete and complete[0].first < point:
                count = complete[0].before + bisect.bisect_left(complete[0].numbers, point)
                age = point - complete[0].first
            out += sum(batch.is_out and batch.first >= point for batch in complete)
            counts.append(count)
            ages.append(age)
        return Restart((point,), (*counts, *ages, out))


@dataclasses.dataclass(frozen=True)
class _ByUser:
    """Makes a batch by a function of the user's."""

    function: Callable[[Sequence[Any]], Any]

    def __call__(self, elements: list[Any], bucket: int) -> Any:
        return self.function(elements)


@dataclasses.dataclass(frozen=True)
class _Stack:
    """Makes a batch: features padded to the bucket's boundary, all others stacked.

    Attributes:
      paddings: of the features that are padded.
      mask: whether masks are added.
      boundaries: of the buckets; in one above them all, features are as long as the longest one.
    """

    paddings: Mapping[str, Any]
    mask: bool
    boundaries: tuple[int, ...]

    def __call__(self, elements: list[Any], bucket: int) -> Any:
        if not self.paddings:
            return stack(elements)
        for element in elements:
            padding.check_features(element, self.paddings, "bucket_by_length", self.mask)
        made = stack([{k: v for k, v in e.items() if k not in self.paddings} for e in elements])
        for name, value in self.paddings.items():
            arrays = [pieces.as_array(e[name], f"the feature {name!r}") for e in elements]
            length = max(len(array) if array.ndim else 0 for array in arrays)
            if bucket < len(self.boundaries):
                length = self.boundaries[bucket]
            rows, mask = padding.padded(arrays, length, name, value, "bucket_by_length")
            made[name] = rows
            if self.mask:
                made[f"{name}_mask"] = mask
        return {name: made[name] for name in [*elements[0], *self._masks()]}

    def _masks(self) -> list[str]:
        return [f"{name}_mask" for name in self.paddings] if self.mask else []


def _padding(
    features: Any, name: str | None, value: Any, mask: Any, bounds: tuple[int, ...]
) -> _Stack:
    if features is None:
        features = () if name is None else (name,)
    if isinstance(features, str) or not all(isinstance(feature, str) for feature in features):
        raise errors.InvalidTypeError(f"features must be a list of names, got {features!r}.")
    paddings = padding.values_of(value, features, "bucket_by_length") if features else {}
    return _Stack(paddings, bool(mask), bounds)
