"""The keyed permutation that shuffles: the same seed gives the same order as Grain 0.2.18.

A Feistel network of four rounds permutes the numbers of `2 * half` bits; its round function is that
of the Simon cipher (Beaulieu et al., "The SIMON and SPECK Families of Lightweight Block Ciphers",
2013). Numbers that leave the range are sent through it again until they fall inside (cycle walking;
Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The round keys are what a C++
`std::seed_seq` generates from the seed.

Three ways lead to the same numbers:

- up to 2^18 of them, the walk is done once for a whole epoch and kept as a table;
- larger ranges go through the network in blocks, and only numbers still outside walk on;
- the last few of these, and single indices, walk in plain Python, where a whole round costs less
  than one call into NumPy.

All functions are pure and the caches hold read-only values, so threads may share them.
"""

from __future__ import annotations

import functools
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from grain_jax._values.errors import InvalidValueError, OutOfRangeError
from grain_jax._values.options import check_count, check_seed

__all__ = ["index_shuffle", "permute", "permute_epochs", "permute_one", "round_keys"]

Int64s = npt.NDArray[np.int64]
_IntOrArray = TypeVar("_IntOrArray", int, npt.NDArray[np.int64])

_ROUNDS = 4
_SEEDS = 1 << 32
_LARGEST = (1 << 63) - 1
# An epoch of up to 2^18 numbers is walked at once, in a few milliseconds, and kept: 1 MiB at most.
_TABLE_BITS = 18
_TABLES_KEPT = 8
# The round function is looked up for halves of up to this many bits, and computed above.
_LOOKUP_BITS = 16
# Halves of more bits would reach the sign of an int64; such ranges are left to plain Python.
_ARRAY_BITS = 31
# Blocks are cut to what stays in a core's cache; so few numbers are left to plain Python.
_CHUNK = 1 << 14
_FEW = 48


def permute(indices: npt.ArrayLike, n: int, seed: int) -> Int64s:
    """Where each of `indices` goes in the permutation of `range(n)` that `seed` stands for.

    `indices` are integers in `[0, n)`; the result is an int64 array of the same shape. `seed` is
    taken modulo 2^32. Raises `OutOfRangeError` for an index outside.

    >>> sorted(permute(range(5), n=5, seed=3).tolist())
    [0, 1, 2, 3, 4]
    """
    given = np.asarray(indices)
    if given.size == 0:
        return np.zeros(given.shape, np.int64)
    flat = given.ravel().astype(np.int64, casting="same_kind", copy=False)
    if flat.min() < 0 or flat.max() >= n:
        raise OutOfRangeError(f"Indices must lie in [0, {n}); got {flat.min()} to {flat.max()}.")
    return _permute_flat(flat, n, seed % _SEEDS).reshape(given.shape)


def permute_epochs(positions: npt.ArrayLike, n: int, seed: int) -> Int64s:
    """The records at `positions` of a stream of epochs, each shuffled by a seed of its own.

    Epoch `e` is positions `e * n` up to `(e + 1) * n` and uses seed `(seed + e) % 2**32`; epoch -1,
    at positions -n to -1, comes before the first. Positions may have any order; the result is an
    int64 array of the same shape.
    """
    given = np.asarray(positions, dtype=np.int64)
    if given.size == 0:
        return np.zeros(given.shape, np.int64)
    flat = given.ravel()
    first = int(flat.min()) // n
    last = int(flat.max()) // n
    if first == last:
        return _permute_flat(flat - first * n, n, (seed + first) % _SEEDS).reshape(given.shape)
    epochs, indices = np.divmod(flat, n)
    # Sorting by epoch visits each epoch once, however the positions are mixed.
    order = np.argsort(epochs, kind="stable")
    found, starts = np.unique(epochs[order], return_index=True)
    result = np.empty_like(flat)
    for epoch, members in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        result[members] = _permute_flat(indices[members], n, (seed + epoch) % _SEEDS)
    return result.reshape(given.shape)


def permute_one(index: int, n: int, seed: int) -> int:
    """What `permute` does, for one index and with little overhead."""
    if not 0 <= index < n:
        raise OutOfRangeError(f"The index must lie in [0, {n}); got {index}.")
    seed %= _SEEDS
    bits = _domain_bits(n)
    if bits <= _TABLE_BITS:
        return int(_epoch_table(n, seed)[index])
    if index == n - 1 == 1 << bits:
        return index
    return _walk([index], n, bits // 2, seed)[0]


def index_shuffle(index: int, max_index: int, seed: int, rounds: int) -> int:
    """Where an index goes in a permutation of the numbers from 0 to `max_index`, both included.

    Args:
      index: from 0 to `max_index`.
      max_index: the largest number.
      seed: 32 bits.
      rounds: 4, which is what everything here shuffles with.

    >>> sorted(index_shuffle(index, max_index=4, seed=3, rounds=4) for index in range(5))
    [0, 1, 2, 3, 4]
    """
    for name, value in (("index", index), ("max_index", max_index), ("seed", seed)):
        check_count(name, value, minimum=0)
    if rounds != _ROUNDS:
        raise InvalidValueError(f"rounds must be {_ROUNDS}, got {rounds!r}.")
    return permute_one(int(index), int(max_index) + 1, check_seed(seed))


@functools.lru_cache(maxsize=1024)
def round_keys(seed: int) -> tuple[int, ...]:
    """The four numbers of 32 bits that `std::seed_seq{seed}.generate` yields in C++.

    Follows the standard, [rand.util.seedseq], for a request of four numbers (s = 1, n = 4, t = 1,
    p = 1, q = 2, m = 4).
    """
    word = (1 << 32) - 1
    keys = [0x8B8B8B8B] * _ROUNDS

    def mixed(value: int) -> int:
        value &= word
        return value ^ (value >> 27)

    for k in range(_ROUNDS):
        r1 = 1664525 * mixed(keys[k] ^ keys[(k + 1) % 4] ^ keys[(k - 1) % 4]) & word
        r2 = (r1 + (1, 1 + seed, 2, 3)[k]) & word
        keys[(k + 1) % 4] = (keys[(k + 1) % 4] + r1) & word
        keys[(k + 2) % 4] = (keys[(k + 2) % 4] + r2) & word
        keys[k] = r2
    for k in range(_ROUNDS):
        r3 = 1566083941 * mixed(keys[k] + keys[(k + 1) % 4] + keys[(k - 1) % 4]) & word
        r4 = (r3 - k) & word
        keys[(k + 1) % 4] ^= r3
        keys[(k + 2) % 4] ^= r4
        keys[k] = r4
    return tuple(keys)


def _domain_bits(n: int) -> int:
    """How many bits the network permutes for `n` numbers: even, at least 16.

    It is the logarithm of `n - 1`, not of `n`, rounded up. So where `n - 1` is a power of four, the
    network has no place for the number `n - 1` itself, and that one stays where it is.
    """
    if not 0 < n <= _LARGEST:
        raise InvalidValueError(f"A permutation needs between 1 and 2**63 - 1 numbers; got n={n}.")
    bits = max((n - 2).bit_length(), 16) if n > 1 else 16
    return bits + bits % 2


def _permute_flat(indices: Int64s, n: int, seed: int) -> Int64s:
    """`permute` without its checks: a flat int64 array, a seed below 2^32."""
    bits = _domain_bits(n)
    if bits <= _TABLE_BITS:
        return _epoch_table(n, seed)[indices].astype(np.int64)
    if n - 1 == 1 << bits:
        stays = indices == n - 1
        result = _permute_flat(np.where(stays, 0, indices), n - 1, seed)
        result[stays] = n - 1
        return result
    half = bits // 2
    if half > _ARRAY_BITS:
        return np.array(_walk(indices.tolist(), n, half, seed), np.int64)
    result = np.empty_like(indices)
    for start in range(0, len(indices), _CHUNK):
        walked = _network(indices[start : start + _CHUNK], half, seed)
        outside = (walked >= n).nonzero()[0]
        while len(outside) > _FEW:
            moved = _network(walked[outside], half, seed)
            walked[outside] = moved
            outside = outside[moved >= n]
        if len(outside):
            walked[outside] = _walk(walked[outside].tolist(), n, half, seed)
        result[start : start + _CHUNK] = walked
    return result


def _network(values: Int64s, half: int, seed: int) -> Int64s:
    """One pass of numbers of `2 * half` bits through the four rounds."""
    if half > _LOOKUP_BITS:
        return _network_computed(values, half, seed)
    a, b, c, d = _keyed_lookups(half, seed)
    left = values & _mask(half)
    right = values >> half
    right ^= a.take(left)
    left ^= b.take(right)
    right ^= c.take(left)
    left ^= d.take(right)
    right <<= half
    right |= left
    return right


def _network_computed(values: Int64s, half: int, seed: int) -> Int64s:
    """`_network` for halves too wide for lookups."""
    mask = (1 << half) - 1
    left = values & mask
    right = values >> half
    for key in round_keys(seed):
        right ^= _simon(left, half) ^ (key & mask)
        left, right = right, left
    return right << half | left


def _walk(values: list[int], n: int, half: int, seed: int) -> list[int]:
    """Sends each number through the network, at least once, until it is below `n`."""
    mask = (1 << half) - 1
    a, b, c, d = (key & mask for key in round_keys(seed))
    if half <= _LOOKUP_BITS:
        look_up = _lookup_list(half).__getitem__
    else:
        look_up = functools.partial(_simon, half=half)
    walked = []
    for value in values:
        while True:
            left = value & mask
            right = (value >> half) ^ look_up(left) ^ a
            left ^= look_up(right) ^ b
            right ^= look_up(left) ^ c
            left ^= look_up(right) ^ d
            value = right << half | left
            if value < n:
                break
        walked.append(value)
    return walked


def _simon(x: _IntOrArray, half: int) -> _IntOrArray:
    """Simon's round function: `(x <<< 1 & x <<< 8) ^ x <<< 2`, rotations of `half` bits."""
    mask = (1 << half) - 1
    one = (x << 1 | x >> (half - 1)) & mask
    two = (x << 2 | x >> (half - 2)) & mask
    eight = (x << 8 | x >> (half - 8)) & mask
    return (one & eight) ^ two


@functools.cache
def _lookup(half: int) -> Int64s:
    """Simon's round function of every number of `half` bits."""
    return _frozen(_simon(np.arange(1 << half, dtype=np.int64), half))


@functools.cache
def _lookup_list(half: int) -> list[int]:
    numbers: list[int] = _lookup(half).tolist()
    return numbers


@functools.lru_cache(maxsize=_TABLES_KEPT)
def _keyed_lookups(half: int, seed: int) -> tuple[Int64s, ...]:
    """The lookup with each of the four round keys already in it."""
    mask = (1 << half) - 1
    return tuple(_frozen(_lookup(half) ^ (key & mask)) for key in round_keys(seed))


@functools.cache
def _mask(half: int) -> np.int64:
    # A NumPy scalar saves converting the Python integer at every operation.
    return np.int64((1 << half) - 1)


def _frozen(array: Int64s) -> Int64s:
    array.setflags(write=False)
    return array


@functools.lru_cache(maxsize=_TABLES_KEPT)
def _epoch_table(n: int, seed: int) -> npt.NDArray[np.uint32]:
    """The whole permutation of `range(n)`.

    All numbers of the domain go through the network once. Then jumps of doubling length, in which
    numbers below `n` rest, replace the walk: for a tiny `n` it can visit the whole domain, and so
    costs a millisecond or two instead of 2^16 steps.
    """
    bits = _domain_bits(n)
    half = bits // 2
    a, b, c, d = _keyed_lookups(half, seed)
    # Rows are the high half, columns the low one, so the first round is one row against one column.
    low = np.arange(1 << half, dtype=np.int64)
    right = low[:, None] ^ a
    left = b.take(right)
    left ^= low
    right ^= c.take(left)
    left ^= d.take(right)
    jump = ((right << half) | left).ravel()
    result = jump[: min(n, 1 << bits)].copy()
    if n < 1 << bits:
        jump[:n] = np.arange(n)
        while result.max() >= n:
            result = jump.take(result)
            jump = jump.take(jump)
    table = np.arange(n, dtype=np.uint32)
    table[: len(result)] = result
    table.setflags(write=False)
    return table
