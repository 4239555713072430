"""A stream over and over."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_all_elements_so_often(length: int, epochs: int) -> None:
    made = experimental.RepeatIterDataset(trees.of(range(length)), epochs)
    assert trees.check(made, workers=[0]) == list(range(length)) * epochs


def test_a_filtered_stream_with_workers() -> None:
    kept = trees.of(range(20)).filter(lambda x: x % 3 > 0)
    made = experimental.RepeatIterDataset(kept, 3).map(lambda x: 10 * x)
    assert trees.check(made, workers=[0, 2], every=4) == [10 * x for x in range(20) if x % 3] * 3


def test_without_an_end() -> None:
    made = experimental.RepeatIterDataset(trees.of(range(3)).filter(bool))
    with iter(made) as iterator:
        assert list(itertools.islice(iterator, 1001)) == [1, 2] * 500 + [1]
        state = iterator.get_state()
    with iter(made) as iterator:
        iterator.set_state(state)
        assert list(itertools.islice(iterator, 4)) == [2, 1, 2, 1]


@pytest.mark.parametrize("epochs", [None, 10**15])
def test_nothing_over_and_over_is_nothing(epochs: int | None) -> None:
    made = experimental.RepeatIterDataset(trees.of(range(9)).filter(lambda x: x > 9), epochs)
    assert trees.check(made, workers=[0, 1]) == []


def test_only_the_first_epoch_may_have_elements() -> None:
    """Two ends with nothing in between are the end."""

    class Once(grain.IterDataset[int]):
        begun = 0

        def __iter__(self) -> Any:
            self.begun += 1
            return iter(trees.of(range(3 if self.begun == 1 else 0)))

    assert list(experimental.RepeatIterDataset(Once())) == [0, 1, 2]


def test_the_order_is_the_same_and_draws_behind_it_are_not() -> None:
    def noise(element: int, rng: np.random.Generator) -> tuple[int, int]:
        return element, int(rng.integers(1 << 60))

    shuffled = grain.MapDataset.range(6).seed(4).shuffle().to_iter_dataset()
    before = experimental.RepeatIterDataset(shuffled.random_map(noise), 3)
    found = trees.check(before, workers=[0])
    assert found == found[:6] * 3
    behind = experimental.RepeatIterDataset(shuffled, 3).random_map(noise)
    found = trees.check(behind, workers=[0, 2], every=5)
    assert [element for element, _ in found] == [element for element, _ in found[:6]] * 3
    assert len({drawn for _, drawn in found}) == 18


def test_repeats_of_repeats_of_a_mixture() -> None:
    mixture = grain.IterDataset.mix([trees.of(range(3)), trees.of(range(10, 13))])
    once = [0, 10, 1, 11, 2, 12]
    made = experimental.RepeatIterDataset(mixture, 2)
    made = experimental.RepeatIterDataset(experimental.LimitIterDataset(made, 8), 2)
    assert trees.check(made, workers=[0]) == (once + once[:2]) * 2


def test_a_state_of_an_epoch_that_is_not_is_refused() -> None:
    with iter(experimental.RepeatIterDataset(trees.of(range(4)), 2)) as iterator:
        list(iterator)
        state = iterator.get_state()
        kept = state["cursor"][0][1]
        assert kept == [1]
        kept[0] = 2
        with pytest.raises(grain.errors.StateError, match=r"epoch 2 of repeat\(2\)"):
            iterator.set_state(state)


@pytest.mark.parametrize("epochs", [0, -1, 1.5, "2", True])
def test_a_number_of_epochs_that_is_none_is_refused(epochs: Any) -> None:
    with pytest.raises(grain.errors.GrainError, match=r"num_epochs.*None repeats for ever"):
        experimental.RepeatIterDataset(trees.of(range(3)), epochs)
