"""A dataset goes on where its states were taken, or an error says where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax.experimental import assert_equal_output_after_checkpoint


class Counting(grain.DatasetIterator[Any]):
    """Goes on at another element than its state says, or with another one."""

    def __init__(self, change: Callable[[int], Any]) -> None:
        super().__init__()
        self.number = 0
        self.change: Callable[[int], Any] = lambda number: number
        self.changed = change

    def __next__(self) -> Any:
        if self.number >= 4:
            raise StopIteration
        self.number += 1
        return {"number": np.array([self.change(self.number), np.nan])}

    def get_state(self) -> dict[str, Any]:
        return {"number": self.number}

    def set_state(self, state: dict[str, Any]) -> None:
        self.number = state["number"]
        if self.number == 2:
            self.change = self.changed


class Dataset(grain.IterDataset[Any]):
    def __init__(self, change: Callable[[int], Any]) -> None:
        super().__init__()
        self.change = change

    def __iter__(self) -> Any:
        return Counting(self.change)


def test_streams_that_go_on_rightly() -> None:
    numbers = grain.MapDataset.range(9).seed(3).shuffle()
    for ds in (
        numbers,
        numbers.to_iter_dataset().filter(lambda x: x % 2).batch(2),
        grain.load([1.5, float("nan"), 2.5], num_epochs=2),
        Dataset(lambda number: number),
    ):
        assert_equal_output_after_checkpoint(ds)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda number: number + 1, "restored behind 2 elements.*another element 2"),
        (lambda number: number + 1j, "restored behind 2 elements.*another element 2"),
        (lambda number: {}[number], "KeyError"),
    ],
)
def test_one_that_does_not(change: Any, text: str) -> None:
    kind = KeyError if text == "KeyError" else AssertionError
    with pytest.raises(kind, match="3" if kind is KeyError else text):
        assert_equal_output_after_checkpoint(Dataset(change))


def test_too_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_state(self: Counting, state: dict[str, Any]) -> None:
        self.number = state["number"] + 1

    monkeypatch.setattr(Counting, "set_state", set_state)
    with pytest.raises(AssertionError, match="restored behind 0 elements"):
        assert_equal_output_after_checkpoint(Dataset(lambda number: number))


def test_nothing_to_compare() -> None:
    with pytest.raises(AssertionError, match="no elements"):
        assert_equal_output_after_checkpoint(grain.MapDataset.range(0))
    for bad in (5, [1, 2]):
        with pytest.raises(grain.errors.InvalidTypeError, match="dataset or a loader"):
            assert_equal_output_after_checkpoint(bad)
