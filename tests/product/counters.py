"""Iterators small enough to know by heart: they count, and their state is the count."""

from __future__ import annotations

import json
from typing import Any

from grain_jax._values.checkpointable import StatefulCheckpointable


class Counter(StatefulCheckpointable):
    """0, 1, 2, ...; its state is bytes, as that of a loader."""

    def __init__(self, *, elastic: bool = True) -> None:
        self.position = 0
        self.elastic = elastic
        self.prefetches: list[int] = []

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        self.position += 1
        return self.position - 1

    def get_state(self) -> Any:
        return json.dumps(self._fields(), indent=1).encode()

    def set_state(self, state: Any) -> None:
        assert type(state) is bytes
        self.position = json.loads(state)["position"]

    def start_prefetch(self) -> None:
        self.prefetches.append(self.position)

    def _fields(self) -> dict[str, Any]:
        return {"position": self.position} | ({"elastic": True} if self.elastic else {})


class DictCounter(Counter):
    """The same with a dict for a state, as that of a dataset."""

    def get_state(self) -> Any:
        return self._fields()

    def set_state(self, state: Any) -> None:
        assert type(state) is dict
        self.position = state["position"]


def advanced(iterator: Counter, steps: int) -> Counter:
    for _ in range(steps):
        next(iterator)
    return iterator
