"""Windows of neighbouring elements, each in an order of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")


def stream(parent: Any, window: Any = 4, seed: Any = 3) -> Any:
    return experimental.WindowShuffleIterDataset(parent, window_size=window, seed=seed)


def random_access(length: int, window: Any = 4, seed: Any = 3) -> Any:
    parent = grain.MapDataset.range(length)
    return experimental.WindowShuffleMapDataset(parent, window_size=window, seed=seed)


def windows(found: list[int], size: int) -> list[list[int]]:
    return [found[begin : begin + size] for begin in range(0, len(found), size)]


@pytest.mark.parametrize("length", [0, 1, 4, 11])
@pytest.mark.parametrize("window", [1, 4, 50])
def test_every_window_has_its_own_elements(length: int, window: int) -> None:
    found = trees.check(stream(trees.of(range(length)), window), workers=[0])
    for shuffled, plain in zip(
        windows(found, window), windows(list(range(length)), window), strict=True
    ):
        assert sorted(shuffled) == plain
    apart = list(random_access(length, window))
    for shuffled, plain in zip(
        windows(apart, window), windows(list(range(length)), window), strict=True
    ):
        assert sorted(shuffled) == plain


def test_windows_differ_and_seeds_differ() -> None:
    orders = [
        tuple(np.array(part) - min(part))
        for seed in (3, 1000)
        for made in (stream(trees.of(range(80)), 8, seed), random_access(80, 8, seed))
        for part in windows(list(made), 8)
    ]
    assert len(set(orders)) > 30
    assert list(stream(trees.of(range(9)), 9, 2**32 - 1)) != list(range(9))


def test_a_filtered_stream_with_workers() -> None:
    kept = trees.of(range(60)).filter(lambda x: x % 3 > 0)
    made = stream(kept, 7).map(lambda x: 10 * x).batch(3)
    found = np.concatenate(trees.check(made, workers=[0, 2], every=3)).tolist()
    for shuffled, plain in zip(
        windows(found, 7), windows([10 * n for n in range(60) if n % 3], 7), strict=True
    ):
        assert sorted(shuffled) == plain


def test_a_random_step_draws_for_the_record_not_for_the_place() -> None:
    def noise(element: int, rng: np.random.Generator) -> tuple[int, int]:
        return element, int(rng.integers(1 << 60))

    before = stream(trees.of(range(10)).random_map(noise, seed=1), 5)
    behind = stream(trees.of(range(10)), 5).random_map(noise, seed=1)
    assert trees.check(before, workers=[0]) == trees.check(behind, workers=[0])


def test_elements_of_at_most_the_next_window_are_made_ahead() -> None:
    """Those of a window are made together, as many at once as stay quick."""
    asked = []

    def noted(element: int) -> int:
        asked.append(element)
        return element

    iterator = iter(stream(trees.of(range(12)).map(noted), 4))
    assert sorted(next(iterator) for _ in range(4)) == [0, 1, 2, 3]
    assert 4 <= len(asked) <= 8
    assert asked == list(range(len(asked)))


def test_windows_of_random_access_go_on_counting_over_epochs() -> None:
    for length in (12, 10):
        made = random_access(length)
        epochs = [[made[epoch * length + place] for place in range(length)] for epoch in range(3)]
        assert all(sorted(epoch) == list(range(length)) for epoch in epochs)
        assert epochs[0] == list(made)
        assert len(set(map(tuple, epochs))) == 3
        assert list(made.repeat(3)) == [*epochs[0], *epochs[1], *epochs[2]]
        assert [made[index] for index in reversed(range(length))] == list(made)[::-1]


def test_a_slice_has_the_same_elements_in_every_epoch() -> None:
    for window in (4, 5):
        first, rest = random_access(12, window)[:6], random_access(12, window)[6:]
        assert list(first.repeat(3)) == list(first) * 3
        assert sorted([*first, *rest]) == list(range(12))


def test_windows_of_a_shuffle_and_shuffles_of_windows() -> None:
    shuffled = grain.MapDataset.range(10).shuffle(seed=5)
    made = experimental.WindowShuffleMapDataset(shuffled, window_size=5, seed=1)
    assert sorted(list(made)[:5]) == sorted(list(shuffled)[:5])
    assert sorted(made.shuffle(seed=2)) == list(range(10))
    with iter(made.to_iter_dataset()) as iterator:
        next(iterator)
        state = iterator.get_state()
    other = experimental.WindowShuffleMapDataset(shuffled, window_size=5, seed=2)
    with (
        iter(other.to_iter_dataset()) as iterator,
        pytest.raises(grain.errors.StateError, match=r"window_size=5, seed=1.*seed=2"),
    ):
        iterator.set_state(state)


def test_a_dataset_without_an_end() -> None:
    endless = grain.MapDataset.range(6).repeat()
    made = experimental.WindowShuffleMapDataset(endless, window_size=4, seed=3)
    found = [made[index] for index in range(12)]
    assert sorted(found) == sorted([*range(6)] * 2)
    assert sorted(found[4:8]) == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("window", "seed", "text"),
    [
        (0, 1, "window_size must be at least 1, got 0"),
        (2.5, 1, "window_size must be a whole number"),
        (2, -1, "seed must be at least 0"),
        (2, None, "seed must be a whole number"),
    ],
)
def test_bad_input_is_refused(window: Any, seed: Any, text: str) -> None:
    for made in (
        lambda: stream(trees.of(range(4)), window, seed),
        lambda: random_access(4, window, seed),
    ):
        with pytest.raises(grain.errors.GrainError, match=text):
            made()


def test_the_other_kind_of_dataset_is_refused() -> None:
    with pytest.raises(grain.errors.InvalidTypeError, match="to_iter_dataset"):
        stream(grain.MapDataset.range(4))
    with pytest.raises(grain.errors.InvalidTypeError, match="no MapDataset"):
        experimental.WindowShuffleMapDataset(trees.of(range(4)), window_size=2, seed=1)  # type: ignore[arg-type]
