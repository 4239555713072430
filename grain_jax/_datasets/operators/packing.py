"""Packing: sequences put whole into rows of one length, each into the first or the fullest row."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra.groupings.base import MANY, Group, Grouper, Grouping, Measure, Restart
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.operators.rows import Feature, Row, Sizes, features_of
from grain_jax._values import errors, options

__all__ = ["BestFitPackIterDataset", "FirstFitPackIterDataset"]

_MOST_WANTED = 64


class _PackIterDataset(IterDataset[Any]):
    _best: bool
    _name: str

    def __init__(
        self,
        parent: IterDataset[Any],
        *,
        length_struct: Any,
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Any = None,
        padding_struct: Any = None,
        max_sequences_per_bin: int | None = None,
    ) -> None:
        super().__init__(parent)
        features, others = features_of(length_struct, meta_features, padding_struct)
        if max_sequences_per_bin is not None:
            options.check_count("max_sequences_per_bin", max_sequences_per_bin, minimum=1)
        group_by = shuffle_bins_group_by_feature
        if group_by is not None and group_by not in (*(f.name for f in features), *others):
            raise errors.InvalidValueError(
                f"shuffle_bins_group_by_feature={group_by!r} is no feature of length_struct "
                f"{length_struct!r} and no meta feature."
            )
        bins = options.check_count("num_packing_bins", num_packing_bins, minimum=1)
        packing = _Packing(
            features=tuple(map(dataclasses.astuple, features)),
            others=others,
            bins=bins,
            seed=options.check_count("seed", seed, minimum=0),
            shuffles=bool(shuffle_bins),
            group_by=group_by,
            alignment=_alignment(pack_alignment_struct, features),
            most=max_sequences_per_bin,
            best=self._best,
        )
        text = f"{self._name}({dict(length_struct)}, num_packing_bins={bins})"
        self._make_of([parent], packing, text, Row(features, others), is_fresh=not others)


class FirstFitPackIterDataset(_PackIterDataset):
    """Rows of sequences that stay whole: each goes into the first row that has room for it.

    `num_packing_bins` rows are filled side by side. When an element fits into none, all of them go
    out, and it is the first of the next ones. Elements are dicts of arrays; all but the first axis
    of a feature must be the same. A row has for each feature `x` of length n:

    - `x`: shape (n, ...), padded with zeros or what `padding_struct` says,
    - `x_segment_ids`: int32 of shape (n,): 1 for the first sequence, 2 for the second, 0 elsewhere,
    - `x_positions`: int32 of shape (n,): 0, 1, 2 and so on in each sequence.

    Args:
      parent: the stream of elements.
      length_struct: the length of each feature.
      num_packing_bins: rows that are filled side by side.
      seed: for the order in which rows go out.
      shuffle_bins: whether rows that go out together do so in a random order.
      shuffle_bins_group_by_feature: a feature of numbers, by whose mean over its distinct values in
        a row rows are sorted that go out together, in a random order where that is equal.
      meta_features: features without segment ids and positions. Those that `length_struct` does not
        have are, for each row, a list of what its elements have.
      pack_alignment_struct: for each feature, what number the places of sequences are multiples of.
      padding_struct: for each feature, the value between and behind the sequences.
      max_sequences_per_bin: elements of a row at most; None for any number.

    Raises:
      InvalidValueError: if a length, or a number of rows, is below 1, or names do not match; and as
        elements come, for a sequence that is longer than its feature, or a feature that only one
        side has.

    Example:
      >>> import grain_jax as grain, numpy as np
      >>> tokens = [{"x": np.array(x)} for x in ([1, 2, 3], [4, 5, 6, 7], [8])]
      >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
      >>> ds = grain.experimental.FirstFitPackIterDataset(
      ...     ds, length_struct={"x": 5}, num_packing_bins=2, shuffle_bins=False)
      >>> for row in ds:
      ...     print(row["x"], row["x_segment_ids"], row["x_positions"])
      [1 2 3 8 0] [1 1 1 2 0] [0 1 2 0 0]
      [4 5 6 7 0] [1 1 1 1 0] [0 1 2 3 0]
    """

    _best = False
    _name = "first_fit_pack"


class BestFitPackIterDataset(_PackIterDataset):
    """Rows of sequences that stay whole: each goes into the fullest row that has room for it.

    Of rows that are equally full it takes the first. All else is as in `FirstFitPackIterDataset`.

    Example:
      >>> import grain_jax as grain, numpy as np
      >>> tokens = [{"x": np.full(n, n)} for n in (3, 2, 1)]
      >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
      >>> rows = BestFitPackIterDataset(
      ...     ds, length_struct={"x": 4}, num_packing_bins=2, shuffle_bins=False
      ... )
      >>> [row["x"].tolist() for row in rows]
      [[3, 3, 3, 1], [2, 2, 0, 0]]
    """

    _best = True
    _name = "best_fit_pack"


@dataclasses.dataclass(frozen=True)
class _Packing(Grouping):
    """Its own number is how many rows have gone out."""

    features: tuple[tuple[Any, ...], ...]
    others: tuple[str, ...]
    bins: int
    seed: int
    shuffles: bool
    group_by: str | None
    alignment: tuple[int, ...]
    most: int | None
    best: bool

    @property
    def wanted(self) -> int:  # type: ignore[override]
        """No row goes out before each has an element."""
        return min(self.bins, _MOST_WANTED)

    @property
    def measure(self) -> Measure:  # type: ignore[override]
        """Returns the lengths of an element's features."""
        features = tuple(Feature(*values) for values in self.features)
        return Sizes(features, self.others, self.group_by if self.shuffles else None)

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns 0 rows."""
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that has no rows."""
        return (_BestFit if self.best else _FirstFit)(self, *kept)


class _Bin:
    """A row that is being filled."""

    __slots__ = ("members", "places", "rooms", "size", "values")

    def __init__(self, lengths: Sequence[int]) -> None:
        self.members: list[tuple[int, int, int]] = []
        self.rooms = list(lengths)  # for each feature
        self.places: list[list[int]] = [[] for _ in lengths]
        # What rows are sorted by: distinct values of each element, and how many values there are.
        self.values: list[tuple[Any, ...]] = []
        self.size = 0


class _FirstFit(Grouper):
    def __init__(self, of: _Packing, out: int) -> None:
        super().__init__()
        self._of = of
        self._out = out  # rows that have gone out
        self._count = 0
        self._over = False
        features = [Feature(*values) for values in of.features]
        self._lengths = [feature.length for feature in features]
        self._aligned = any(step > 1 for step in of.alignment)
        self._is_sorted = of.shuffles and of.group_by is not None
        names = [feature.name for feature in features]
        self._sorted_by: int | None = None  # the feature, if rows have padding there
        if self._is_sorted and of.group_by in names:
            self._sorted_by = names.index(of.group_by)
            self._padding = features[self._sorted_by].padding or 0
        self._bins: list[_Bin] = []
        # For each row, the room for its first feature: what is asked most. -1: it takes no more.
        self._free: list[int] = []

    def wants(self) -> tuple[int, int] | None:
        return None if self._over else (0, MANY)

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        for sizes in measures or ():
            row = self._find(sizes)
            if row is None:
                if len(self._bins) == self._of.bins:
                    self._flush()
                row = len(self._bins)
                self._bins.append(_Bin(self._lengths))
                self._free.append(self._lengths[0])
            self._put(row, sizes)
            self._count += 1

    def end(self, parent: int) -> None:
        self._over = True
        if self._bins:
            self._flush()

    def _find(self, sizes: Sequence[Any]) -> int | None:
        """Returns the row for an element of these lengths; None if no row has room for it."""
        size = sizes[0]
        if len(self._lengths) == 1:
            for row, room in enumerate(self._free):
                if room >= size:
                    return row
            return None
        for row, room in enumerate(self._free):
            if room >= size and all(map(operator.ge, self._bins[row].rooms, sizes)):
                return row
        return None

    def _put(self, row: int, sizes: Sequence[Any]) -> None:
        chosen, count = self._bins[row], self._count
        rooms, places = chosen.rooms, chosen.places
        for feature, length in enumerate(self._lengths):
            room = rooms[feature]
            places[feature].append(length - room)
            room -= sizes[feature]
            if self._aligned:
                step = self._of.alignment[feature]
                room = length + (room - length) // step * step
            rooms[feature] = room
        chosen.members.append((0, count, count + 1))
        self._free[row] = -1 if len(chosen.members) == self._of.most else rooms[0]
        if self._is_sorted:
            chosen.values.append(sizes[-1])
            if self._sorted_by is not None:
                chosen.size += sizes[self._sorted_by]

    def _flush(self) -> None:
        """Lets all rows go out; behind the last one a new grouper goes on as this one does."""
        ordered = self._ordered()
        self._out += len(ordered)
        *before, last = (Group(chosen.members, chosen.places) for chosen in ordered)
        restart = Restart((self._count,), (self._out,))
        self.groups += [*before, last._replace(restart=restart)]
        self._bins, self._free = [], []

    def _ordered(self) -> list[_Bin]:
        of, bins = self._of, self._bins
        if not of.shuffles:
            return bins
        order = np.random.default_rng(of.seed + self._out).permuted(range(len(bins))).tolist()
        if self._is_sorted:
            # Where rows are equal, what stands at its place in a random order decides.
            place = order
            order = sorted(order, key=lambda row: (self._mean(bins[row]), place[row]))
        return [bins[row] for row in order]

    def _mean(self, chosen: _Bin) -> float:
        """Returns the mean of the distinct values in a row that are not 0, of one feature."""
        values = {value for of_element in chosen.values for value in of_element}
        if self._sorted_by is not None and chosen.size < self._lengths[self._sorted_by]:
            values.add(self._padding)
        found = np.array(sorted(values))
        count = np.count_nonzero(found)
        return float(found.sum() / count) if count else 0.0


class _BestFit(_FirstFit):
    def _find(self, sizes: Sequence[Any]) -> int | None:
        size = sizes[0]
        found = [row for row, room in enumerate(self._free) if room >= size]
        bins = self._bins
        if len(self._lengths) > 1:
            found = [row for row in found if all(map(operator.ge, bins[row].rooms, sizes))]
        return min(found, key=lambda row: sum(bins[row].rooms), default=None)


def _alignment(given: Any, features: Sequence[Feature]) -> tuple[int, ...]:
    if given is None:
        return (1,) * len(features)
    names = [feature.name for feature in features]
    if not isinstance(given, Mapping) or set(given) != set(names):
        raise errors.InvalidValueError(
            f"pack_alignment_struct must have a number for each feature of length_struct, {names}, "
            f"got {given!r}. Write 1 for features that need no alignment."
        )
    return tuple(
        options.check_count(f"pack_alignment_struct[{name!r}]", given[name], minimum=1)
        for name in names
    )
