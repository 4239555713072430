"""Selections against plain Python, element by element."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from grain_jax import errors
from grain_jax._algebra import selections
from grain_jax._algebra.index_maps import ENDLESS


def chosen(selection: selections.Selection, indices: list[int]) -> list[tuple[int, int]]:
    parts, inner = selection(np.array(indices, np.int64))
    return list(zip(parts.tolist(), inner.tolist(), strict=True))


def spread(weights: tuple[int, ...], count: int) -> list[tuple[int, int]]:
    """Each part in turn where its rounded-down share of what is left grows, counted as it comes."""
    found, counts = [], [0] * len(weights)
    for k in range(count):
        rest, a, b = sum(weights), k, k + 1
        for part, weight in enumerate(weights):
            left, left_after = a * (rest - weight) // rest, b * (rest - weight) // rest
            if a - left != b - left_after:
                found.append((part, counts[part]))
                counts[part] += 1
                break
            rest, a, b = rest - weight, left, left_after
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_mixture_keeps_to_its_weights(seed: int) -> None:
    rng = random.Random(seed)
    weights = [rng.choice([1, 2, 3, 0.5, 0.07, 11]) for _ in range(rng.randint(1, 6))]
    mixture = selections.mixture(weights, [10**6] * len(weights))
    expected = spread(mixture.weights, 2000)
    assert chosen(mixture, list(range(2000))) == expected
    places = [rng.randrange(2000) for _ in range(50)]  # any indices, in any order
    assert chosen(mixture, places) == [expected[place] for place in places]
    total = sum(mixture.weights)
    for part, weight in enumerate(mixture.weights):
        count = sum(which == part for which, _ in expected)
        assert abs(Fraction(count) - Fraction(2000 * weight, total)) <= len(weights)


def test_a_mixture_far_on() -> None:
    """Where products of index and weight would not fit into 64 bits; the choice is periodic."""
    mixture = selections.mixture([1, 1000, 3], [ENDLESS] * 3)
    total = sum(mixture.weights)
    begin = total * (2**62 // total)
    parts = chosen(mixture, list(range(100)))
    assert chosen(mixture, [begin + k for k in range(100)]) == [
        (part, begin // total * mixture.weights[part] + inner) for part, inner in parts
    ]


@pytest.mark.parametrize(
    ("weights", "lengths", "length"),
    [
        (None, [10, 7], 14),
        ([3, 1], [10, 7], 13),
        ([0.5, 0.3, 0.2], [10, 7, 3], 15),
        (None, [ENDLESS, 7], 14),
        (None, [ENDLESS, ENDLESS], ENDLESS),
    ],
)
def test_a_mixture_ends_with_the_first_part_that_does(
    weights: Any, lengths: list[int], length: int
) -> None:
    assert selections.mixture(weights, lengths).length == length


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], "1 weights for 2 datasets"),
        ([1, 0], r"weight 1 of mix is 0\. Weights are numbers above 0"),
        ([-1, 2], "weight 0 of mix is -1"),
        ([1, float("nan")], "weight 1 of mix is nan"),
        ([1, float("inf")], "weight 1 of mix is inf"),
        ([1, "2"], "weight 1 of mix is '2'"),
        ([1e-9, 1], "too far apart"),
    ],
)
def test_weights_that_cannot_be(weights: Any, message: str) -> None:
    with pytest.raises(errors.InvalidValueError, match=message):
        selections.mixture(weights, [5, 5])


def test_a_part_without_elements_is_refused() -> None:
    with pytest.raises(errors.InvalidValueError, match=r"dataset 0 of mix has no elements\. Leave"):
        _ = selections.mixture([1, 2], [0, 5]).length


@pytest.mark.parametrize("lengths", [(3, 4), (3, 0, 2), (0, 1), (5,)])
def test_a_concatenation_keeps_the_epoch(lengths: tuple[int, ...]) -> None:
    concatenation = selections.Concatenation(lengths)
    once = [(part, i) for part, length in enumerate(lengths) for i in range(length)]
    expected = [(p, i + epoch * lengths[p]) for epoch in range(3) for p, i in once]
    assert concatenation.length == len(once)
    assert chosen(concatenation, list(range(3 * len(once)))) == expected


def test_a_concatenation_that_ends_without_an_end() -> None:
    concatenation = selections.Concatenation((3, ENDLESS))
    assert concatenation.length == ENDLESS
    assert chosen(concatenation, [0, 3, 2**60]) == [(0, 0), (1, 0), (1, 2**60 - 3)]
    with pytest.raises(errors.InvalidValueError, match="dataset 0 of concatenate has no end"):
        selections.Concatenation((ENDLESS, 3))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (5, "returned 5. Return two whole numbers"),
        ((0, 1, 2), "Return two whole numbers"),
        ((0.5, 1), "Return two whole numbers"),
        ((2, 1), "chose dataset 2 of 2. Return a number from 0 to 1"),
        ((-1, 1), "chose dataset -1 of 2"),
    ],
)
def test_answers_that_cannot_be(answer: Any, message: str) -> None:
    class Odd:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return answer

    with pytest.raises(ValueError if "chose" in message else TypeError, match=message):
        chosen(selections.Given(Odd(), 2), [1])


def test_what_chooses_has_a_length_and_answers() -> None:
    with pytest.raises(TypeError, match=r"which has no __len__\. Derive from"):
        selections.Given(iter([]), 2)
