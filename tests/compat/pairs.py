"""The same pipeline in both libraries, and what comes out of it in a form to compare."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np


def plain(element: Any) -> Any:
    """An element with every array replaced by its dtype and contents."""
    if isinstance(element, np.ndarray):
        return (element.dtype.str, element.tolist())
    if isinstance(element, np.generic):
        return element.item()
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, (list, tuple)):
        return type(element)(plain(value) for value in element)
    return element


def plain_list(elements: Iterable[Any]) -> list[Any]:
    return [plain(element) for element in elements]


def flat_map(library: ModuleType, fan_out: int, count: int) -> Any:
    """A flat-map of `library` that makes 0 to `count` elements of each."""

    class Split(library.experimental.FlatMapTransform):  # type: ignore[misc, name-defined]
        max_fan_out = fan_out

        def flat_map(self, element: Any) -> list[Any]:
            made = int(np.sum(element)) % (count + 1)
            return [element + 100_000 * (number + 1) for number in range(made)]

    return Split()
