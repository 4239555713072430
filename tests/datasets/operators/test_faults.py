"""Records that fail and elements that never come, around operators."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")

Stream = grain.IterDataset[Any]
operators = grain.experimental


def numbers(*bounds: int) -> Stream:
    return grain.MapDataset.range(*bounds).to_iter_dataset()


def fails_at_two(value: int) -> int:
    if value == 2:
        raise ValueError(value)
    return value


def policy(workers: int) -> grain.MultiprocessingOptions:
    return grain.MultiprocessingOptions(workers, on_error=grain.ErrorPolicy(skip=ValueError))


PLACES: dict[str, tuple[Callable[[Any], Stream], list[int]]] = {
    "behind the mixture": (
        lambda o: grain.IterDataset.mix(
            [numbers(5).map(fails_at_two), numbers(10, 15)]
        ).mp_prefetch(o),
        [0, 10, 1, 11, 3, 12, 4, 13],
    ),
    "in a part": (
        lambda o: grain.IterDataset.mix(
            [numbers(5).map(fails_at_two).mp_prefetch(o), numbers(10, 15)]
        ),
        [0, 10, 1, 11, 3, 12, 4, 13],
    ),
    "before a limit": (
        lambda o: operators.LimitIterDataset(numbers(5).map(fails_at_two).mp_prefetch(o), 3),
        [0, 1, 3],
    ),
    "a map behind a mixture": (
        lambda o: (
            grain.IterDataset.mix([numbers(5), numbers(10, 15)]).map(fails_at_two).mp_prefetch(o)
        ),
        [0, 10, 1, 11, 12, 3, 13, 4, 14],
    ),
    "a map and a batch behind a repeat": (
        lambda o: (
            operators.RepeatIterDataset(numbers(4), 2)
            .map(fails_at_two)
            .batch(6)
            .map(lambda batch: batch.tolist())
            .mp_prefetch(o)
        ),
        [[0, 1, 3, 0, 1, 3]],
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("place", PLACES)
def test_a_policy_holds_wherever_it_is_given(place: str, workers: int) -> None:
    make, expected = PLACES[place]
    stream = make(policy(workers))
    with iter(stream) as iterator:
        found, states = [], [iterator.get_state()]
        for element in iterator:
            found.append(element)
            states.append(iterator.get_state())
        assert found == expected
        for position, state in enumerate(states):
            iterator.set_state(state)
            assert list(iterator) == expected[position:]


def test_what_is_made_of_several_records_is_not_left_out() -> None:
    def fails(batch: Any) -> Any:
        raise ValueError("a batch")

    stream = operators.RepeatIterDataset(numbers(4).batch(2), 2).map(fails)
    with pytest.raises(ValueError, match="a batch"):
        list(stream.mp_prefetch(policy(0)))


@pytest.mark.parametrize("make", [
    operators.RepeatIterDataset,
    lambda stream: grain.IterDataset.mix([operators.RepeatIterDataset(stream)] * 2),
])  # fmt: skip
def test_a_stream_that_comes_again_and_gives_nothing_says_so(
    make: Callable[[Stream], Stream], caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def keeps(value: int) -> bool:
        nonlocal calls
        calls += 1
        if calls > 5_500:
            raise LookupError("enough")
        return False

    with caplog.at_level(logging.WARNING, "grain_jax"), pytest.raises(LookupError):
        next(iter(make(numbers(3)).filter(keeps)))
    assert "5000 elements in a row gave no element" in caplog.text
