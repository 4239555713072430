"""Operations of which the tests of the loader build pipelines, and elements as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import grain_jax as grain
from grain_jax import transforms

__all__ = ["Add", "All", "Double", "Odd", "load", "plain", "plain_list", "shuffled"]


def load(*operations: Any, source: Any = range(12), **settings: Any) -> grain.DataLoader:
    """A loader that reads its source once and in order, unless a sampler says otherwise."""
    settings.setdefault("sampler", grain.samplers.IndexSampler(len(source), num_epochs=1))
    return grain.DataLoader(data_source=source, operations=operations, **settings)


def shuffled(*operations: Any, source: Any = range(20), **settings: Any) -> grain.DataLoader:
    """A loader of two shuffled epochs, unless a sampler says otherwise."""
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=4, num_epochs=2)
    return load(*operations, source=source, **{"sampler": sampler, **settings})


class All(transforms.Filter):
    """Keeps every element, which nobody knows before."""

    def filter(self, element: Any) -> bool:
        return True


class Double(transforms.Map):
    """Doubles the leaf `x`."""

    def map(self, element: Any) -> Any:
        return {**element, "x": 2 * element["x"]}


class Add(transforms.Map):
    """Adds a number, which tests change."""

    def __init__(self, amount: int = 1) -> None:
        self.amount = amount

    def map(self, element: Any) -> Any:
        return element + self.amount


class Odd(transforms.Filter):
    """Keeps odd numbers."""

    def filter(self, element: Any) -> bool:
        return bool(element % 2)


def plain(value: Any) -> Any:
    """Arrays as nested lists."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def plain_list(stream: Iterable[Any]) -> list[Any]:
    """All elements of a stream."""
    return [plain(element) for element in stream]
