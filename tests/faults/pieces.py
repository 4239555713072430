"""Steps that do nothing to the values and something to the processes, for any random pipeline."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import grain_jax as grain
from tests.property import kinds, library, reference

__all__ = ["FailsOnce", "Faulty", "Slow", "Widen", "expected", "loader", "value_of"]

WIDTH = 3000


class Slow(grain.transforms.Map):
    """Takes its time over some elements."""

    def __init__(self, every: int, seconds: float, kind: str = "number") -> None:
        self.every, self.seconds, self.kind = every, seconds, kind

    def map(self, element: Any) -> Any:
        if kinds.total(kinds.kind_of(self.kind).decode(element)) % self.every == 0:
            time.sleep(self.seconds)
        return element


class FailsOnce(grain.transforms.Map):
    """Raises at some elements, at each of them the first time only, whichever process it is in."""

    def __init__(self, every: int, folder: Path, kind: str = "number") -> None:
        self.every, self.folder, self.kind = every, folder, kind

    def map(self, element: Any) -> Any:
        total = kinds.total(kinds.kind_of(self.kind).decode(element))
        if total % self.every == 0:
            try:
                os.close(os.open(self.folder / str(total), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return element
            raise OSError(f"not yet: {total}")
        return element


class Faulty(grain.transforms.Map):
    """Raises at some elements, always: what is left out then is what a filter leaves out."""

    def __init__(self, every: int, kind: str = "number") -> None:
        self.every, self.kind = every, kind

    def map(self, element: Any) -> Any:
        if kinds.total(kinds.kind_of(self.kind).decode(element)) % self.every == 0:
            raise ValueError(f"for good: {element}")
        return element


class Widen(grain.transforms.Map):
    """Adds an array that is worth checking, since it lies in shared memory."""

    def map(self, element: Any) -> Any:
        return {"value": element, "wide": np.full(WIDTH, library.total(element))}


def value_of(element: Any) -> Any:
    """Returns the value under `Widen`, having checked all of the array beside it."""
    value = library.plain(element["value"])
    assert element["wide"].shape == (WIDTH,)
    assert (element["wide"] == library.total(element["value"])).all(), "contents changed"
    return value


def loader(
    pipeline: reference.Pipeline, workers: int, extra: list[tuple[int, Any]], **settings: Any
) -> grain.DataLoader:
    """Builds a random pipeline with more operations in it.

    Args:
      pipeline: what to build.
      workers: worker processes.
      extra: pairs of place among the pipeline's own operations, ascending, and operation.
      **settings: further arguments of the loader.
    """
    todo = library.operations(pipeline)
    for place, operation in reversed(extra):
        todo.insert(place, operation)
    return library.loader(pipeline, workers, todo, **settings)


def expected(pipeline: reference.Pipeline) -> list[Any]:
    """Returns what the pipeline must yield; the order of records is the library's own sampler's.

    That order is held against Grain's by the tests of samplers and of properties.
    """
    positions = np.arange(pipeline.records * pipeline.epochs)
    return reference.stream(pipeline, library.sampler(pipeline).keys(positions).tolist())
