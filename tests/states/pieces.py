"""What the pipelines of the stored states are made of. A change here makes their data useless."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

import grain_jax as grain
from grain_jax import transforms

__all__ = [
    "Add",
    "AddIndex",
    "Draw",
    "DrawGlobally",
    "EveryFifthFails",
    "Gaps",
    "Keys",
    "Named",
    "Numbers",
    "Odd",
    "Own",
    "Sequence",
    "Several",
    "Sums",
    "SumsWithState",
    "TextNumbers",
    "plain",
]


class Add(transforms.Map):
    def map(self, element: Any) -> Any:
        return element + 1000


class Sequence(transforms.Map):
    """A dict with as many tokens as the number says, 1 to 6."""

    def map(self, element: Any) -> Any:
        return {"tokens": np.arange(10 * element, 10 * element + 1 + element * 7 % 6)}


class AddIndex(transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return element + 1000 * index


class Draw(transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + 1000 * int(rng.integers(1_000_000))


class DrawGlobally(transforms.Map):
    """Draws from the generators of the process, which are seeded by position."""

    def map(self, element: Any) -> Any:
        return [element, random.randrange(1_000_000), int(np.random.randint(1_000_000))]


class Odd(transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element % 2)


class Several(transforms.FlatMap):
    """Of n, n % 4 outputs."""

    max_fan_out = 3

    def flat_map(self, element: int) -> list[int]:
        return [100 * element + i for i in range(element % 4)]


class EveryFifthFails(transforms.Map):
    def map(self, element: int) -> int:
        if element % 5 == 0:
            raise ValueError(f"{element} divides by five")
        return element


class Named(transforms.Map):
    def map(self, element: Any) -> Any:
        return {"x": element}


class Gaps:
    """A source of 24 records; some are absent, which nobody says before they are read."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int | None:
        return None if index in (7, 8, 15) else index


class Keys:
    """A sampler of one's own: backwards, each record twice, with generators of its own."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        if not 0 <= index < 24:
            raise IndexError(index)
        rng = np.random.Generator(np.random.Philox(key=index))
        return grain.RecordMetadata(index=index, record_key=11 - index // 2, rng=rng)


class Sums:
    """A legacy operation without a state: running sums, restored by running again."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, stream: Iterator[Any]) -> Iterator[Any]:
        for record in stream:
            self.total += int(record.data)
            yield grain.Record(record.metadata, self.total)


class SumsWithState(Sums):
    """The same with a state."""

    def get_state(self) -> int:
        return self.total

    def set_state(self, state: int) -> None:
        self.total = state


class Numbers:
    """An iterator of the user's own, whose state is a dict."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> Any:
        if self.next == 10:
            raise StopIteration
        self.next += 1
        # The last batch is short.
        return {"x": np.arange(3 if self.next == 10 else 4) + 10 * self.next}

    def get_state(self) -> Any:
        return {"next": self.next}

    def set_state(self, state: Any) -> None:
        self.next = state["next"]


class TextNumbers(Numbers):
    """The same with bytes that are no JSON."""

    def get_state(self) -> Any:
        return b"next " + str(self.next).encode()

    def set_state(self, state: Any) -> None:
        self.next = int(state.removeprefix(b"next "))


class _OwnIterator(grain.DatasetIterator):
    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def __next__(self) -> int:
        if self.done == 12:
            raise StopIteration
        self.done += 1
        return 7 * self.done

    def get_state(self) -> dict[str, Any]:
        return {"done": self.done}

    def set_state(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class Own(grain.IterDataset):
    """A stream of the user's own."""

    def __iter__(self) -> grain.DatasetIterator:
        return _OwnIterator()


def plain(value: Any) -> Any:
    """An element as JSON holds it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (int, str, type(None))):
        return value
    return np.asarray(value).tolist()
