"""Random-access datasets as plain functions of an index: what the library is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grain_jax as grain
from grain_jax import transforms

__all__ = ["Copies", "Pair", "extended", "shuffled", "start"]

Shuffled = int | None
"""After how many elements shuffles have their orders again, where a slice is behind them."""
At = Callable[[int, Shuffled], Any]
Pair = tuple[grain.MapDataset[Any], At, int]
"""A dataset of the library, the same as a function of an index, and its length."""


class Copies(transforms.FlatMap):
    """Gives up to three elements for one."""

    max_fan_out = 3

    def flat_map(self, element: int) -> list[int]:
        return [10 * element + i for i in range(element % 4)][:3]


def start(n: int) -> Pair:
    """The whole numbers below n, counted on over epochs."""
    return grain.MapDataset.range(n), lambda i, period: i % n, n


def shuffled(index: int, n: int, seed: int, period: Shuffled = None) -> int:
    """Where Grain's permutation sends an index; the epoch is kept."""
    from grain import experimental  # not in workers, which import this with a test's functions

    epoch, within = divmod(index, n)
    order = epoch if period is None else index % period // n
    if n > 1:
        within = experimental.index_shuffle(within, n - 1, (seed + order) % 2**32, 4)
    return epoch * n + within


def _present(below: At, then: Callable[[int, Any], Any]) -> At:
    def at(index: int, period: Shuffled) -> Any:
        value = below(index, period)
        return None if value is None else then(index, value)

    return at


def _map(pair: Pair) -> Pair:
    dataset, below, n = pair
    return dataset.map(lambda x: 2 * x), _present(below, lambda i, x: 2 * x), n


def _index(pair: Pair) -> Pair:
    dataset, below, n = pair
    return dataset.map_with_index(lambda i, x: x + i), _present(below, lambda i, x: x + i), n


def _filter(pair: Pair) -> Pair:
    dataset, below, n = pair
    kept = _present(below, lambda i, x: x if x % 3 != 1 else None)
    return dataset.filter(lambda x: x % 3 != 1), kept, n


def _slice(pair: Pair) -> Pair:
    dataset, below, n = pair
    picked = range(n)[1::2]

    def at(index: int, period: Shuffled) -> Any:
        epoch, within = divmod(index, len(picked))
        return below(epoch * n + picked[within], n)

    return dataset[1::2], at, len(picked)


def _repeat(pair: Pair) -> Pair:
    dataset, below, n = pair
    return dataset.repeat(2), below, 2 * n


def _shuffle(pair: Pair) -> Pair:
    dataset, below, n = pair
    return dataset.shuffle(seed=n), lambda i, p: below(shuffled(i, n, n, p), p), n


def _flat_map(pair: Pair) -> Pair:
    dataset, below, n = pair

    def at(index: int, period: Shuffled) -> Any:
        value = below(index // 3, None if period is None else period // 3)
        outputs = [] if value is None else Copies().flat_map(value)
        return dict(enumerate(outputs)).get(index % 3)

    return dataset.flat_map(Copies()), at, 3 * n


def _batch(pair: Pair) -> Pair:
    dataset, below, n = pair
    length = -(-n // 3)

    def at(index: int, period: Shuffled) -> Any:
        epoch, number = divmod(index, length)
        begin = 3 * number
        period = None if period is None else period // length * n
        return sum(below(epoch * n + i, period) for i in range(begin, min(begin + 3, n)))

    return dataset.batch(3, batch_fn=sum), at, length


_EXTENSIONS = {
    "map": _map,
    "index": _index,
    "filter": _filter,
    "slice": _slice,
    "repeat": _repeat,
    "shuffle": _shuffle,
    "flat_map": _flat_map,
    "batch": _batch,
}


def extended(pair: Pair, kinds: list[str]) -> Pair:
    """Applies operators to both; what the library refuses (a batch over gaps) is left out."""
    for number, kind in enumerate(kinds):
        if kind == "batch" and {"filter", "flat_map"} & set(kinds[:number]):
            continue
        if kind == "slice" and pair[2] < 2:
            continue
        pair = _EXTENSIONS[kind](pair)
    return pair
