"""Elements that are sequences of small numbers, written in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.property.registered import Plain

__all__ = ["KINDS", "decode", "encode"]

KINDS = ("arrays", "number", "registered", "text")
_BASE = 10_000


def encode(kind: str, sequence: Sequence[int]) -> Any:
    """The element of a kind that stands for a sequence."""
    if kind == "arrays":
        return {"x": np.array(sequence, np.int32), "count": len(sequence)}
    if kind == "number":
        return sum((number + 1) * _BASE**place for place, number in enumerate(sequence))
    if kind == "registered":
        return Plain(np.array(sequence, np.int64), np.array(sum(sequence)))
    return "".join(chr(0x4E00 + number) for number in sequence)


def decode(element: Any) -> list[int]:
    """The sequence that an element stands for."""
    if isinstance(element, dict):
        assert element["count"] == len(element["x"])
        return [int(number) for number in element["x"]]
    if isinstance(element, Plain):
        assert int(element.y) == element.x.sum()
        return [int(number) for number in element.x]
    if isinstance(element, str):
        return [ord(letter) - 0x4E00 for letter in element]
    sequence = []
    while element:
        element, digit = divmod(element, _BASE)
        sequence.append(digit - 1)
    return sequence
