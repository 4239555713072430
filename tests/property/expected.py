"""The elements that a random pipeline has to yield, in types and contents."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.property import kinds, library, reference, sources
from tests.property.reference import Pipeline

__all__ = ["differing", "draw", "elements", "values"]


def draw(rng: random.Random) -> Pipeline:
    """Returns a random pipeline of any kind."""
    of = {name: kinds_of for name, (_, kinds_of) in sources.SOURCES.items()}
    pipeline = reference.draw_of_any_kind(rng, of, sources.DRAWING)
    if pipeline.source not in sources.THREADED:
        return pipeline
    return dataclasses.replace(pipeline, threads=rng.choice([None, None, None, 0, 2]))


def values(
    pipeline: Pipeline, order: Sequence[int], folder: Path, extra: library.Extra = ()
) -> list[Any]:
    """Returns what a pipeline has to yield, as numbers.

    What user code draws from the generators of the process is said by a pass without workers, stops
    and stages, which defines it.

    Args:
      pipeline: which.
      order: the record key of every position.
      folder: for what its source keeps on disk.
      extra: operations that change no value; their places count where draws are made.
    """
    if not pipeline.draws:
        return reference.stream(pipeline, order)
    alone = dataclasses.replace(pipeline, remainder=None)
    with library.opened(alone, folder, extra=extra) as iterator:
        return [kinds.kind_of(pipeline.kind).decode(element) for element in iterator]


def elements(pipeline: Pipeline, values: Sequence[Any]) -> list[Any]:
    """Returns the elements that stand for numbers."""
    kind = kinds.kind_of(pipeline.kind)
    if pipeline.remainder is None:
        return [kind.encode(value) for value in values]
    padded = reference.padded(values, pipeline)
    return [_on_device(kind.many(rows), missing, pipeline) for rows, missing in padded]


def _on_device(batch: dict[str, Any], missing: int, pipeline: Pipeline) -> dict[str, Any]:
    """A batch in 32 bits, with a mask, and zeros in the rows that are missing."""
    narrow = {"int64": np.int32, "float64": np.float32}
    arrays = {
        name: leaf.astype(narrow.get(leaf.dtype.name, leaf.dtype)) for name, leaf in batch.items()
    }
    if pipeline.remainder == "drop":
        return arrays
    rows = len(next(iter(arrays.values())))
    return {
        name: np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)])
        for name, leaf in {**arrays, "mask": np.ones(rows, np.bool_)}.items()
    }


def differing(pipeline: Pipeline, found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Returns the first difference between two streams, in words; nothing where there is none."""
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        if pipeline.remainder is not None:
            one = {name: np.array(leaf) for name, leaf in one.items()}
        if not kinds.same(one, other):
            return f"element {number} is {one!r}, and should be {other!r}"
    if len(found) != len(expected):
        return f"there are {len(found)} elements, and should be {len(expected)}"
    return ""
