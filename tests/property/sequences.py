"""Elements that are sequences of small numbers, written in several ways, and functions on them.

Imports numpy only, so that workers start quickly; JAX is imported by elements that it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["KINDS", "MOST", "Kinded", "Listed", "decode", "encode"]

KINDS = ("arrays", "number", "registered", "text")
_BASE = 10_000

MOST = 9
"""Numbers in a sequence."""


def encode(kind: str, sequence: Sequence[int]) -> Any:
    """The element of a kind that stands for a sequence."""
    if kind == "arrays":
        return {"x": np.array(sequence, np.int32), "count": len(sequence)}
    if kind == "number":
        return sum((number + 1) * _BASE**place for place, number in enumerate(sequence))
    if kind == "registered":
        from tests.property.registered import Plain

        return Plain(np.array(sequence, np.int64), np.array(sum(sequence)))
    return "".join(chr(0x4E00 + number) for number in sequence)


def decode(element: Any) -> list[int]:
    """The sequence that an element stands for."""
    if isinstance(element, dict):
        assert element["count"] == len(element["x"])
        return [int(number) for number in element["x"]]
    if type(element).__name__ == "Plain":
        assert int(element.y) == element.x.sum()
        return [int(number) for number in element.x]
    if isinstance(element, str):
        return [ord(letter) - 0x4E00 for letter in element]
    sequence = []
    while element:
        element, digit = divmod(element, _BASE)
        sequence.append(digit - 1)
    return sequence


class Listed:
    """An iterator of the user's own over a list, which says where it stands."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements, self._at = elements, 0

    def __iter__(self) -> Listed:
        return self

    def __next__(self) -> Any:
        if self._at == len(self._elements):
            raise StopIteration
        self._at += 1
        return self._elements[self._at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


class Kinded:
    """Functions on sequences, which are elements of some kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def encoded(self, sequence: list[int]) -> Any:
        return encode(self.kind, sequence[:MOST])

    def parsed(self, line: str) -> Any:
        return self.encoded([int(number) for number in line.split()])

    def keeps(self, element: Any) -> bool:
        return sum(decode(element)) % 3 > 0

    def copies(self, element: Any) -> list[Any]:
        return [element] * (len(decode(element)) % 3)

    def more(self, element: Any) -> Any:
        return self.encoded([number + 1 for number in decode(element)])

    def noisy(self, element: Any, rng: np.random.Generator) -> Any:
        noise = int(rng.integers(50))
        return self.encoded([number + noise for number in decode(element)])

    def joined(self, elements: list[Any], layout: Any) -> Any:
        return self.encoded([n for element in elements for n in decode(element)])

    def row(self, elements: list[Any], lengths: list[int]) -> Any:
        found = [n for element in elements for n in decode(element)]
        assert len(found) == sum(lengths)
        return self.encoded(found + [0] * (MOST - len(found)))

    def pieces(self, elements: list[Any], cuts: Any) -> Any:
        pairs = zip(elements, cuts, strict=True)
        return self.encoded([n for e, (a, b) in pairs for n in decode(e)[a:b]])
