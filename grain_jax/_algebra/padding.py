"""Padding: sequences of features brought to one length, with masks that say which rows are real."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import pieces
from grain_jax._values import errors, options

__all__ = ["Padding", "check_features", "padded", "padding_of", "values_of"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Padding:
    """Pads features of an element; a function, for `map`.

    Attributes:
      lengths: of the features that are padded.
      values: what they are padded with; None for zeros.
      truncate: whether longer sequences are cut.
      mask: whether masks are added.
    """

    lengths: Mapping[str, int]
    values: Mapping[str, Any]
    truncate: bool
    mask: bool

    def __call__(self, element: Any) -> dict[str, Any]:
        check_features(element, self.lengths, "pad", self.mask)
        made = dict(element)
        for name, length in self.lengths.items():
            array = pieces.as_array(element[name], f"the feature {name!r}")
            if array.ndim and len(array) > length and self.truncate:
                array = array[:length]
            rows, mask = padded([array], length, name, self.values[name], "pad")
            made[name] = rows[0]
            if self.mask:
                made[f"{name}_mask"] = mask[0]
        return made


def padded(
    arrays: Sequence[Array], length: int, name: str, value: Any, what: str
) -> tuple[Array, Array]:
    """Returns sequences as rows of one length, and which of their entries are real.

    Their shapes are (rows, length, ...) and (rows, length).

    Args:
      arrays: the sequences.
      length: of the rows.
      name: of the feature.
      value: what stands behind the sequences; None for zeros.
      what: the operator, for error texts.

    Raises:
      InvalidValueError: for a sequence that is longer, or that is a number.
    """
    for array in arrays:
        if not array.ndim:
            raise errors.InvalidValueError(
                f"the feature {name!r} is a number, and {what} pads sequences: arrays with one "
                "axis at least."
            )
        if len(array) > length:
            raise errors.InvalidValueError(
                f"a sequence of the feature {name!r} has length {len(array)}, and {what} makes it "
                f"{length}. Cut it in a map before, or give a larger length."
            )
    count = len(arrays)
    places = range(0, count * length, length)
    flat = pieces.filled(arrays, places, count * length, f"the feature {name!r}", value)
    sizes = np.array([len(array) for array in arrays])
    mask = np.arange(length) < sizes[:, None]
    return flat.reshape(count, length, *flat.shape[1:]), mask


def check_features(element: Any, names: Any, what: str, mask: bool) -> None:
    """Refuses an element that has no such features, or has one that is called like a mask."""
    if not isinstance(element, Mapping):
        raise errors.InvalidTypeError(
            f"{what} takes dicts of features, and this element is a value of type "
            f"{type(element).__qualname__}. Make it one in a map."
        )
    for name in names:
        if name not in element:
            raise errors.InvalidValueError(
                f"the element has the features {list(element)}, and not {name!r}, which {what} is "
                "to pad."
            )
        if mask and f"{name}_mask" in element:
            raise errors.InvalidValueError(
                f"the element has a feature {name + '_mask'!r}, which {what} would make. Rename it "
                "in a map, or write mask=False."
            )


def padding_of(lengths: Any, values: Any, truncate: Any, mask: Any) -> Padding:
    """Returns the function for what a user gave.

    Args:
      lengths: a dict of whole numbers.
      values: one value, or one for each feature.
      truncate: whether longer sequences are cut.
      mask: whether masks are added.

    Raises:
      InvalidTypeError, InvalidValueError: naming what cannot be.
    """
    if not isinstance(lengths, Mapping) or not lengths:
        raise errors.InvalidTypeError(
            f"pad takes a dict that gives each feature its length, got {lengths!r}. Write "
            "pad({'tokens': 512}), say."
        )
    checked = {
        name: options.check_count(f"the length of {name!r}", length, minimum=1)
        for name, length in lengths.items()
    }
    return Padding(checked, values_of(values, checked, "pad"), bool(truncate), bool(mask))


def values_of(given: Any, names: Any, what: str) -> dict[str, Any]:
    """Returns the padding of each feature.

    Raises:
      InvalidValueError: if there is none for one, or it is no single value.
    """
    values = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, given)
    if set(values) != set(names):
        raise errors.InvalidValueError(
            f"{what} pads {list(names)}, and padding has values for {list(values)}. Give one value "
            "for all of them, or one for each."
        )
    for name, value in values.items():
        if np.ndim(value):
            raise errors.InvalidValueError(
                f"the padding of {name!r} must be one value, got {value!r}."
            )
    return values
