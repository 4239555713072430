"""Concat-then-split: sequences one behind the other, cut wherever a row is full."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from grain_jax._algebra import pieces
from grain_jax._algebra.groupings.base import MANY, Group, Grouper, Grouping, Measure, Restart
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.operators.rows import Feature, Sizes, array_of, features_of, laid_out
from grain_jax._values import errors

__all__ = ["BOSHandling", "ConcatThenSplitIterDataset"]

_MOST_WAITING = 64
"""So many full elements wait for the row before them; then it goes out as it is."""

Cut = tuple[int, int]
"""The first token of an element that a row has, and the one behind the last."""


class BOSHandling(enum.Enum):
    """What becomes of the first token of each segment of a row.

    Example:
      >>> BOSHandling.DO_NOTHING
      <BOSHandling.DO_NOTHING: 1>
    """

    DO_NOTHING = 1
    REPLACE_FIRST_TOKEN_WITH_BOS = 2


class ConcatThenSplitIterDataset(IterDataset[Any]):
    """Rows of sequences one behind the other; who does not fit goes on in the next row.

    Elements are dicts of arrays or numbers, of which all but the first axis must be the same. A row
    is full when one of its features is; the others are padded with zeros. Every token comes once.
    A row has for each feature `x` of length n:

    - `x`: shape (n, ...),
    - `x_segment_ids`: int32 of shape (n,): 1 for tokens of the row's first element, 2 for those of
      the second, 0 elsewhere,
    - `x_positions`: int32 of shape (n,): 0, 1, 2 and so on in each segment.

    Args:
      parent: the stream of elements.
      length_struct: the length of each feature.
      meta_features: features that are not cut, and have no segment ids and positions: each row that
        has tokens of an element has them whole. A row goes out when they do not fit any more.
      split_full_length_features: whether elements with a feature of exactly its full length, and
        none above, are cut like others. False: each is a row of its own, behind the one that is
        being filled as it comes. If 64 wait for it, that row goes out as it is.
      bos_handling: what becomes of the first token of each segment.
      bos_features: in which features.
      bos_token_id: the token that replaces it.

    Raises:
      InvalidValueError: if a length is below 1, or names do not match; and as elements come, for a
        meta feature that is longer than its length, or a feature that only one side has.

    Example:
      >>> import grain_jax as grain, numpy as np
      >>> tokens = [{"x": np.array(x)} for x in ([1, 2, 3], [4, 5, 6, 7], [8])]
      >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
      >>> for row in grain.experimental.ConcatThenSplitIterDataset(ds, length_struct={"x": 5}):
      ...     print(row["x"], row["x_segment_ids"], row["x_positions"])
      [1 2 3 4 5] [1 1 1 2 2] [0 1 2 0 1]
      [6 7 8 0 0] [1 1 2 0 0] [0 1 0 0 0]
    """

    def __init__(
        self,
        parent: IterDataset[Any],
        *,
        length_struct: Mapping[str, int],
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ) -> None:
        super().__init__(parent)
        features, others = features_of(length_struct, meta_features)
        if others:
            raise errors.InvalidValueError(
                f"length_struct has no length for the meta features {list(others)}. Give them one "
                "that holds those of all elements of a row."
            )
        bos = _bos(features, bos_handling, bos_features, bos_token_id)
        splitting = _Splitting(
            features=tuple(map(dataclasses.astuple, features)),
            splits_full=bool(split_full_length_features),
            bos=None if bos is None else (*bos[0], repr(bos[1])),
        )
        text = f"concat_then_split({dict(length_struct)})"
        self._make_of([parent], splitting, text, _Cut(features, bos), is_fresh=True)


def _bos(
    features: Sequence[Feature], handling: Any, names: Any, token: Any
) -> tuple[tuple[str, ...], Any] | None:
    """Returns in which features the first tokens are replaced, and by what; None for none."""
    if not isinstance(handling, BOSHandling):
        raise errors.InvalidTypeError(
            f"bos_handling must be one of {list(BOSHandling)}, got {handling!r}."
        )
    if handling is BOSHandling.DO_NOTHING:
        return None
    if token is None:
        raise errors.InvalidValueError(f"bos_handling={handling} needs a bos_token_id.")
    known = [feature.name for feature in features if not feature.is_meta]
    if isinstance(names, str) or not set(names) <= set(known):
        raise errors.InvalidValueError(
            f"bos_features must be some of the features {known}, got {names!r}."
        )
    return tuple(names), token


@dataclasses.dataclass(frozen=True)
class _Splitting(Grouping):
    """Its own numbers are how many tokens of the next element are out, of each feature."""

    features: tuple[tuple[Any, ...], ...]
    splits_full: bool
    bos: tuple[Any, ...] | None

    wanted = 32

    @property
    def measure(self) -> Measure:  # type: ignore[override]
        """Returns the lengths of an element's features."""
        return Sizes(tuple(Feature(*values) for values in self.features), cuts=True)

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns 0 tokens."""
        return (0,) * len(self.features)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that leaves out so many tokens of its first element."""
        return _Cutting(self, kept)


class _Cutting(Grouper):
    def __init__(self, of: _Splitting, done: tuple[int, ...]) -> None:
        super().__init__()
        self._of = of
        features = [Feature(*values) for values in of.features]
        self._lengths = tuple(feature.length for feature in features)
        self._metas = [place for place, feature in enumerate(features) if feature.is_meta]
        self._nothing = (0,) * len(features)
        self._done = done  # tokens of the next element that are out
        self._count = 0
        self._over = False
        self._waiting: list[int] = []  # full elements
        self._begin_row()

    def wants(self) -> tuple[int, int] | None:
        return None if self._over else (0, MANY)

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        lengths, splits = self._lengths, self._of.splits_full
        for sizes in measures or ():
            is_full = not splits and any(map(int.__eq__, sizes, lengths))
            if is_full and not any(self._done) and all(map(int.__le__, sizes, lengths)):
                self._waiting.append(self._count)
                if len(self._waiting) == _MOST_WAITING:
                    self._flush(self._count + 1, self._nothing)
            elif self._done is self._nothing and all(map(int.__le__, sizes, self._rooms)):
                self._put(self._nothing, sizes)
            else:
                self._add(sizes)
            self._count += 1

    def end(self, parent: int) -> None:
        self._over = True
        if self._members or self._waiting:
            self._flush(self._count, self._nothing)

    def _begin_row(self) -> None:
        self._members: list[tuple[int, int, int]] = []
        self._cuts: list[list[Cut]] = [[] for _ in self._lengths]
        self._rooms = self._lengths
        self._output = 0

    def _add(self, sizes: tuple[int, ...]) -> None:
        """Lays an element out, over as many rows as it takes."""
        begins, self._done = self._done, self._nothing
        if any(map(int.__gt__, begins, sizes)):
            raise errors.StateError(
                f"the state says that {begins} tokens of an element with {sizes} have been handed "
                "out: it is a state of other data."
            )
        while True:
            ends = tuple(map(min, sizes, map(int.__add__, begins, self._rooms)))
            if ends == sizes:
                self._put(begins, ends)
                return
            # What is not cut fits, or waits for the next row with all that is left.
            if all(ends[place] == sizes[place] for place in self._metas) and any(
                end > begin
                for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
                if place not in self._metas
            ):
                self._put(begins, ends)
                begins = tuple(0 if place in self._metas else end for place, end in enumerate(ends))
            self._flush(self._count, begins)

    def _put(self, begins: tuple[int, ...], ends: tuple[int, ...]) -> None:
        """Lays a part of an element out in the row."""
        members, count = self._members, self._count
        if members and members[-1][2] == count:
            members[-1] = (0, members[-1][1], count + 1)
        else:
            members.append((0, count, count + 1))
        for column, begin, end in zip(self._cuts, begins, ends, strict=True):
            column.append((begin, end))
        counts = map(int.__sub__, ends, begins)
        self._rooms = tuple(map(int.__sub__, self._rooms, counts))
        self._output = sum(begins)

    def _flush(self, behind: int, done: tuple[int, ...]) -> None:
        """Lets the row go out, and the full elements behind it."""
        row, restart = self._members, Restart((behind,), done)
        if row:
            # Rows that end in one element are told apart by what came of it before.
            last = None if self._waiting else restart
            self.groups.append(Group(row, self._cuts, last, output=self._output))
        for place, number in enumerate(self._waiting, 1):
            last = restart if place == len(self._waiting) else None
            self.groups.append(Group([(0, number, number + 1)], None, last))
        self._waiting = []
        self._begin_row()


@dataclasses.dataclass(frozen=True)
class _Cut:
    """Makes a row of parts of elements; without cuts, of one element that is whole.

    Attributes:
      features: of the elements.
      bos: the features whose segments begin with a token, and the token.
    """

    features: tuple[Feature, ...]
    bos: tuple[tuple[str, ...], Any] | None

    def __call__(
        self, elements: Sequence[Any], cuts: Sequence[Sequence[Cut]] | None
    ) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for number, feature in enumerate(self.features):
            parts = [array_of(element, feature.name) for element in elements]
            if cuts is not None:
                parts = [part[slice(*cut)] for part, cut in zip(parts, cuts[number], strict=True)]
            places = list(itertools.accumulate(map(len, parts), initial=0))[:-1]
            row.update(laid_out(feature, parts, places))
            if self.bos is not None and feature.name in self.bos[0]:
                out, name = row[feature.name], f"the feature {feature.name!r}"
                token = pieces.value_of(self.bos[1], out.dtype, name)
                out[[place for place, part in zip(places, parts, strict=True) if len(part)]] = token
        return row
