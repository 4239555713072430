"""Generators are Philox at a place that seed, position, output and step fix."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._values import randomness

WORD = 2**64
PLACES = st.tuples(
    st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**96), st.just(2)
)


def reference(seed: int, position: int, output: int, step: int) -> np.random.Generator:
    """NumPy's own, from the words that the contract names."""
    key = np.array([seed, position % WORD], np.uint64)
    counter = np.array([0, output // WORD % WORD, output % WORD, step], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


@given(PLACES)
def test_generators(place: tuple[int, int, int, int]) -> None:
    assert randomness.generator(*place).random() == reference(*place).random()


@given(st.lists(PLACES, min_size=1, max_size=8))
def test_rekeyed_equals_fresh_ones(places: list[tuple[int, int, int, int]]) -> None:
    rekeyed = randomness.Rekeyed(places[0][0], 2)
    for _, position, output, _ in places:
        rng = rekeyed.take(position, output)
        expected = reference(places[0][0], position, output, 2)
        # Draws of 32 bits leave half a word, which must not reach the next taker.
        assert rng.integers(7, dtype=np.uint32) == expected.integers(7, dtype=np.uint32)
        assert rng.normal() == expected.normal()
        del rng


def test_output_0_after_one_above_64_bits() -> None:
    rekeyed = randomness.Rekeyed(1, 0)
    rekeyed.take(0, 2**64)
    assert rekeyed.take(0, 0).random() == reference(1, 0, 0, 0).random()


def test_neighbours_share_no_draw() -> None:
    draws = [
        tuple(randomness.generator(seed, position, output, step).integers(2**63, size=4))
        for seed, position, output, step in itertools.product(range(3), repeat=4)
    ]
    assert len({value for row in draws for value in row}) == 4 * 3**4


@pytest.mark.parametrize("keep", ["generator", "bits", "method", "frame"])
def test_what_a_user_keeps_stays_untouched(keep: str) -> None:
    rekeyed = randomness.Rekeyed(3, 1)
    kept = []
    for position in range(5):
        rng = rekeyed.take(position)
        if keep == "generator":
            kept.append(rng.random)
            kept[-1] = rng
        elif keep == "bits":
            kept.append(rng.bit_generator)
        elif keep == "method":
            kept.append(rng.random)
        else:
            kept.append(lambda rng=rng: rng.random())
        del rng
    for position, one in enumerate(kept):
        if isinstance(one, np.random.BitGenerator):
            one = np.random.Generator(one)
        draw = one.random() if isinstance(one, np.random.Generator) else one()
        assert draw == reference(3, position, 0, 1).random()


def test_generators_pickle_and_copy() -> None:
    rng = randomness.generator(1, 2, 3, 4)
    rng.random()
    clones = [pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng)]
    expected = rng.random()
    assert [clone.random() for clone in clones] == [expected, expected]
