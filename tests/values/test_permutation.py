from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grain_jax._values import permutation
from grain_jax._values.errors import InvalidValueError, OutOfRangeError
from grain_jax._values.permutation import permute, permute_epochs, permute_one, round_keys

SEEDS = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1]))
# Around where the domain grows, and where the way to compute changes.
EDGES = [1, 2, 3, 255, 256, 257, 2**16, 2**16 + 1, 2**16 + 2, 2**17, 2**18, 2**18 + 1, 2**18 + 2]
LARGE = [2**20, 2**20 + 1, 2**20 + 2, 10**9, 2**32, 2**32 + 1, 2**32 + 2, 2**40 + 5, 2**63 - 1]


def plain_keys(seed: int, count: int = 4) -> list[int]:
    """`std::seed_seq{seed}.generate` for any count, step by step as the C++ standard has it."""
    words = [0x8B8B8B8B] * count
    s, n = 1, count
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q = p + t
    m = max(s + 1, n)
    for k in range(m):
        word = words[k % n] ^ words[(k + p) % n] ^ words[(k - 1) % n]
        r1 = 1664525 * (word ^ (word >> 27))
        r2 = r1 + (s if k == 0 else k % n + seed if k <= s else k % n)
        words[(k + p) % n] = (words[(k + p) % n] + r1) % 2**32
        words[(k + q) % n] = (words[(k + q) % n] + r2) % 2**32
        words[k % n] = r2 % 2**32
    for k in range(m, m + n):
        word = (words[k % n] + words[(k + p) % n] + words[(k - 1) % n]) % 2**32
        r3 = 1566083941 * (word ^ (word >> 27)) % 2**32
        r4 = (r3 - k % n) % 2**32
        words[(k + p) % n] ^= r3
        words[(k + q) % n] ^= r4
        words[k % n] = r4
    return words


def plain(index: int, n: int, seed: int) -> int:
    """The permutation for one index, with bit strings instead of arithmetic."""
    bits = 16
    while 2**bits < n - 1:
        bits += 2
    if index == 2**bits:
        return index
    half = bits // 2

    def rotated(word: int, by: int) -> int:
        text = format(word, f"0{half}b")
        by %= half
        return int(text[by:] + text[:by], 2)

    while True:
        high, low = divmod(index, 2**half)
        for key in plain_keys(seed):
            mixed = (rotated(low, 1) & rotated(low, 8)) ^ rotated(low, 2)
            high, low = low, high ^ mixed ^ key % 2**half
        index = high * 2**half + low
        if index < n:
            return index


def test_round_keys_are_those_of_the_standard_library() -> None:
    # What a C++ program prints for std::seed_seq{1234}.
    assert round_keys(1234) == (0xE016DF91, 0x8FF1B268, 0xB2CA2F0C, 0xFB8060F5)
    for seed in (0, 1, 1234, 2**32 - 1):
        assert list(round_keys(seed)) == plain_keys(seed)


@pytest.mark.parametrize("n", [5, 300, 2**16, 2**16 + 1, 2**16 + 2, 2**18 + 2, 2**33])
def test_equals_the_plain_algorithm(n: int) -> None:
    # Few numbers walk the whole domain of 2^16, so small ranges are sampled thinly.
    indices = [0, n - 1, *np.random.default_rng(n).integers(0, n, 3 if n < 2**10 else 20).tolist()]
    expected = [plain(index, n, seed=7) for index in indices]
    assert permute(indices, n, seed=7).tolist() == expected
    assert [permute_one(index, n, seed=7) for index in indices] == expected


@pytest.mark.parametrize("n", EDGES)
def test_is_a_permutation_at_the_edges(n: int) -> None:
    for seed in (0, 2**32 - 1):
        assert np.array_equal(np.sort(permute(np.arange(n), n, seed)), np.arange(n))


@settings(max_examples=50)
@given(n=st.integers(1, 3000), seed=SEEDS)
def test_is_a_permutation(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, seed)), np.arange(n))


@settings(max_examples=5)
@given(n=st.integers(2**18 + 2, 2**20 + 2), seed=SEEDS)
def test_is_a_permutation_where_blocks_walk(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, seed)), np.arange(n))


def domain_without_a_place_for_the_last(n: int) -> bool:
    return n - 1 in {4**k for k in range(8, 32)}


@pytest.mark.parametrize("n", EDGES + LARGE)
def test_equals_grain(reference_grain: ModuleType, n: int) -> None:
    from grain import experimental

    # Grain walks through the whole domain for a range of two or three.
    indices = np.random.default_rng(n).integers(0, n, 50 if n > 3 else 5)
    if domain_without_a_place_for_the_last(n):
        indices = indices[indices < n - 1]
        assert permute_one(n - 1, n, seed=3) == n - 1
    for seed in (0, 2**32 - 1):
        expected = [experimental.index_shuffle(int(i), n - 1, seed, 4) for i in indices]
        assert permute(indices, n, seed).tolist() == expected
        assert [permute_one(int(index), n, seed) for index in indices] == expected


@settings(max_examples=100)
@given(data=st.data(), n=st.integers(1, 2**40), seed=SEEDS)
def test_equals_grain_anywhere(
    reference_grain: ModuleType, data: st.DataObject, n: int, seed: int
) -> None:
    from grain import experimental

    index = data.draw(st.integers(0, n - 1))
    if domain_without_a_place_for_the_last(n) and index == n - 1:
        return
    expected = experimental.index_shuffle(index, n - 1, seed, 4)
    assert permute([index], n, seed).tolist() == [expected]
    assert permute_one(index, n, seed) == expected


@settings(max_examples=100)
@given(
    n=st.sampled_from([1, 7, 1000, 2**16 + 1, 2**18 + 3]),
    seed=SEEDS,
    positions=st.lists(st.integers(0, 10**6), max_size=30),
)
def test_epochs_count_the_seed_up(n: int, seed: int, positions: list[int]) -> None:
    positions = [position % (4 * n) for position in positions]
    expected = [permute_one(p % n, n, (seed + p // n) % 2**32) for p in positions]
    assert permute_epochs(positions, n, seed).tolist() == expected


def test_epochs_before_the_first_count_the_seed_down() -> None:
    expected = [permute_one(p % 10, 10, seed=p // 10 + 1) for p in range(-25, 15)]
    assert permute_epochs(range(-25, 15), 10, seed=1).tolist() == expected


def test_far_epochs_wrap_the_seed_around() -> None:
    epoch = 2**32 + 5
    assert permute_epochs([epoch * 10 + 3], 10, seed=1).tolist() == [permute_one(3, 10, seed=6)]


def test_shapes_are_kept() -> None:
    assert permute(np.arange(6).reshape(2, 3), 6, seed=1).shape == (2, 3)
    assert permute_epochs(np.arange(6).reshape(2, 3), 2, seed=1).shape == (2, 3)
    assert permute([], 6, seed=1).shape == (0,)
    assert permute_epochs([], 6, seed=1).dtype == np.int64


def test_blocks_of_all_sizes_agree() -> None:
    n = 2**20 + 12345
    everything = permute(np.arange(50_000), n, seed=11)
    for size in (1, 3, 256, 2**14, 2**14 + 1):
        assert np.array_equal(permute(np.arange(size), n, seed=11), everything[:size])


def test_threads_share_the_tables() -> None:
    expected = permute(np.arange(5000), 5000, seed=1)
    permutation._epoch_table.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: permute(np.arange(5000), 5000, seed=1), range(32)))
    assert all(np.array_equal(each, expected) for each in found)


def test_results_are_the_callers_own() -> None:
    first = permute(np.arange(100), 100, seed=1)
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(permute(np.arange(100), 100, seed=1), kept)


def test_refuses_what_lies_outside() -> None:
    with pytest.raises(OutOfRangeError, match=r"\[0, 10\).*0 to 10"):
        permute([0, 10], 10, seed=1)
    with pytest.raises(OutOfRangeError, match=r"\[0, 10\).*-1"):
        permute_one(-1, 10, seed=1)
    with pytest.raises(
        InvalidValueError, match=r"between 1 and 2\*\*63 - 1.*n=9223372036854775808"
    ):
        permute_one(0, 2**63, seed=1)
