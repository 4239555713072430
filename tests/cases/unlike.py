"""Classes of test_real_values that go to workers, which need not make its values for them."""

from __future__ import annotations

from typing import Any

import numpy as np

import grain_jax as grain


class Unit(np.ndarray[Any, Any]):
    def __array_ufunc__(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError


class Twice(grain.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: int) -> list[Any]:
        return [None, element] if element == 3 else [element, element]
