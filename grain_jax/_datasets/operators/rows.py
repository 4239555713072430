"""Rows: features of several elements side by side, with ids of segments and positions in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import pieces
from grain_jax._values import errors, options

__all__ = ["Feature", "Row", "Sizes", "features_of"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of elements whose sequences go into rows.

    Attributes:
      name: of the feature.
      length: that rows have.
      is_meta: whether it goes without segment ids and positions.
      padding: what rows hold elsewhere; None for zeros.
    """

    name: str
    length: int
    is_meta: bool
    padding: Any


def features_of(
    lengths: Any, meta_features: Any, paddings: Any = None
) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """Returns the features that have a length, and the names of those that have none.

    Raises:
      InvalidTypeError: if `lengths` is no dict of whole numbers.
      InvalidValueError: if a length is below 1, or names do not match.
    """
    if not isinstance(lengths, Mapping) or not all(isinstance(name, str) for name in lengths):
        raise errors.InvalidTypeError(
            f"length_struct must be a dict that gives each feature its length, got {lengths!r}. "
            "Elements are dicts of arrays: bring others into that form with a map."
        )
    if not lengths:
        raise errors.InvalidValueError("length_struct has no features. Write {'tokens': 512}, say.")
    if isinstance(meta_features, str) or not all(isinstance(name, str) for name in meta_features):
        raise errors.InvalidTypeError(
            f"meta_features must be a list of names, got {meta_features!r}."
        )
    if paddings is not None and (
        not isinstance(paddings, Mapping) or set(paddings) != set(lengths)
    ):
        raise errors.InvalidValueError(
            f"padding_struct must have a value for each feature of length_struct, {list(lengths)}, "
            f"got {paddings!r}. Write 0 for features that are padded with zeros."
        )
    features = tuple(
        Feature(
            name,
            options.check_count(f"length_struct[{name!r}]", length, minimum=1),
            name in meta_features,
            None if paddings is None else _plain(paddings[name], name),
        )
        for name, length in lengths.items()
    )
    others = tuple(dict.fromkeys(name for name in meta_features if name not in lengths))
    made = [name for feature in features for name in _names(feature)] + list(others)
    for name in made:
        if made.count(name) > 1:
            raise errors.InvalidValueError(
                f"two features would be called {name!r} in the rows. Rename one in a map."
            )
    return features, others


def _plain(padding: Any, name: str) -> Any:
    value = np.asarray(padding)
    if value.ndim:
        raise errors.InvalidValueError(
            f"padding_struct[{name!r}] must be one value, got {padding!r}."
        )
    return value.item()


def _names(feature: Feature) -> list[str]:
    name = feature.name
    return [name] if feature.is_meta else [name, f"{name}_segment_ids", f"{name}_positions"]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A measure: the length of each feature, and, if asked, the distinct values of one.

    Attributes:
      features: whose lengths are asked.
      others: further features that each element has.
      distinct: the feature whose values are asked; None for none.
      cuts: whether sequences that are longer than a row are cut, of features that are no meta ones.
    """

    features: tuple[Feature, ...]
    others: tuple[str, ...] = ()
    distinct: str | None = None
    cuts: bool = False

    def __call__(self, element: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        try:
            for feature in self.features:
                value = element[feature.name]
                if type(value) is np.ndarray and value.ndim:
                    size = len(value)
                else:
                    size = len(array_of(element, feature.name))
                if size > feature.length and not (self.cuts and not feature.is_meta):
                    raise errors.InvalidValueError(self._too_long(feature, size))
                found.append(size)
            if len(element) != len(self.features) + len(self.others):
                raise errors.InvalidValueError(self._unlike(element))
            for name in self.others:
                element[name]
        except (KeyError, TypeError, IndexError) as error:
            if isinstance(error, errors.GrainError):
                raise
            raise errors.InvalidValueError(self._unlike(element)) from error
        if self.distinct is not None:
            found.append(self._distinct(element))
        return tuple(found)

    def _distinct(self, element: Any) -> tuple[Any, ...]:
        values = np.unique(np.asarray(element[self.distinct]))
        if values.dtype.kind not in "biuf":
            raise errors.InvalidTypeError(
                f"rows cannot be sorted by the feature {self.distinct!r}, which is of dtype "
                f"{values.dtype}: shuffle_bins_group_by_feature takes a feature of numbers."
            )
        return tuple(values.tolist())

    def _too_long(self, feature: Feature, size: int) -> str:
        return (
            f"a sequence of the feature {feature.name!r} has length {size}, and the rows have "
            f"{feature.length}. Cut it in a map before, or give length_struct a larger number."
        )

    def _unlike(self, element: Any) -> str:
        wanted = [*(feature.name for feature in self.features), *self.others]
        if not isinstance(element, Mapping):
            return (
                f"packing takes dicts with the features {wanted}, and this element is a value of "
                f"type {type(element).__qualname__}. Make it one in a map."
            )
        missing = [name for name in wanted if name not in element]
        if missing:
            return f"the element has the features {list(element)}, and {missing} of {wanted} not."
        more = [name for name in element if name not in wanted]
        return (
            f"the element has the features {more}, for which length_struct has no length. Give "
            "them one, name them in meta_features, or leave them out in a map."
        )


def array_of(element: Any, name: str) -> Array:
    """Returns a feature as an array; a number has one row."""
    array = pieces.as_array(element[name], f"the feature {name!r}")
    return array if array.ndim else array.reshape(1)


@dataclasses.dataclass(frozen=True)
class Row:
    """Makes a row of elements, and of the places that each of their features has in it.

    Attributes:
      features: that have a length.
      others: those that are lists of what the elements have.
    """

    features: tuple[Feature, ...]
    others: tuple[str, ...] = ()

    def __call__(self, elements: Sequence[Any], places: Sequence[Sequence[int]]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for feature, begins in zip(self.features, places, strict=True):
            parts = [array_of(element, feature.name) for element in elements]
            row.update(laid_out(feature, parts, begins))
        for name in self.others:
            row[name] = [element[name] for element in elements]
        return row


def laid_out(feature: Feature, parts: Sequence[Array], begins: Sequence[int]) -> dict[str, Array]:
    """Returns a feature of a row, in which each part has its place, and what goes with it."""
    name, length = feature.name, feature.length
    filled = pieces.filled(parts, begins, length, f"the feature {name!r}", feature.padding)
    if feature.is_meta:
        return {name: filled}
    segments, positions = pieces.segments(parts, begins, range(1, len(parts) + 1), length)
    return {name: filled, f"{name}_segment_ids": segments, f"{name}_positions": positions}
