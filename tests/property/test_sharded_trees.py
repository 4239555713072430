"""Random trees dealt out over shards: what plain Python says, on any number of processes."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

import grain_jax as grain
from tests.property import sequences, trees
from tests.property.test_trees import tree

pytestmark = pytest.mark.usefixtures("no_process_left")

Steps = list[list[Any]]


class Run:
    """A tree on some processes.

    Args:
      seed: of the tree.
      shards: how many virtual shards it is dealt out over.
      share: how many elements a batch has of each of them.
      count: processes.
      draws: whether steps draw.
      workers: of each process.
    """

    def __init__(
        self, seed: int, shards: int, share: int, count: int, draws: bool = False, workers: int = 0
    ) -> None:
        self.iterators = []
        for index in range(count):
            ds, _ = tree(random.Random(seed), _kind(seed), 3, draws, (0, shards))
            ds = ds.batch(share * shards // count, batch_fn=list)
            ds = ds.shard(grain.sharding.ShardOptions(index, count), virtual_shards=shards)
            self.iterators.append(iter(trees.with_workers(ds, workers) if workers else ds))

    def step(self) -> list[Any]:
        """The elements of all processes together, of an elastic stream in any order."""
        elements = [element for iterator in self.iterators for element in next(iterator, [])]
        return sorted(elements, key=sequences.decode) if self.is_elastic else elements

    def steps(self, most: int | None = None) -> Steps:
        """Those of the steps that follow, without empty ones."""
        return list(itertools.islice(iter(self.step, []), most))

    @property
    def is_elastic(self) -> bool:
        """Whether its position is one number for all processes."""
        return bool(self.iterators[0].get_state()["elastic"])

    def state(self) -> str:
        states = [iterator.get_state() for iterator in self.iterators]
        return json.dumps(states[0] if self.is_elastic else {"processes": states})

    def go_to(self, state: str) -> None:
        for iterator in self.iterators:
            iterator.set_state(json.loads(state))

    def close(self) -> None:
        for iterator in self.iterators:
            iterator.close()


def _kind(seed: int) -> str:
    return sequences.KINDS[seed % 4]


def dealt(parts: Steps, share: int) -> Steps:
    """Batches of an equal share of each part, as long as one of them has something."""
    most = max(-(-len(part) // share) for part in parts)
    cut = [[part[k * share : (k + 1) * share] for part in parts] for k in range(most)]
    return [list(itertools.chain(*shares)) for shares in cut]


def decoded(steps: Steps) -> Steps:
    return [[sequences.decode(element) for element in step] for step in steps]


def counts_of(shards: int) -> list[int]:
    """The numbers of processes that so many shards can be dealt out over."""
    return [count for count in range(1, shards + 1) if shards % count == 0]


def check_restores(rng: random.Random, whole: Steps, seed: int, *given: Any) -> None:
    """From every position some number of processes goes on the same; every other one runs on."""
    counts = counts_of(given[0])
    running = Run(seed, *given[:2], rng.choice(counts), *given[2:])
    for place in range(len(whole) + 1):
        state = running.state()
        resumed = Run(seed, *given[:2], rng.choice(counts), *given[2:])
        for _ in range(2):
            resumed.go_to(state)
            most = None if place % 3 == 0 else 2
            assert trees.same(resumed.steps(most), whole[place:][:most])
        resumed.go_to(state)
        if place % 2:
            running, resumed = resumed, running
        resumed.close()
        assert trees.same([running.step()], [*whole[place:], []][:1])
    running.close()


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_over_shards(seed: int) -> None:
    rng = random.Random(1000 + seed)
    shards, share = rng.choice([2, 4, 6]), rng.randint(1, 3)
    parts = [
        tree(random.Random(seed), _kind(seed), 3, False, (index, shards))[1]
        for index in range(shards)
    ]
    runs = [Run(seed, shards, share, count).steps() for count in counts_of(shards)]
    expected = dealt(parts, share)
    if Run(seed, shards, share, 1).is_elastic:
        expected = [sorted(step) for step in expected]
    for found in runs:
        assert decoded(found) == expected
    check_restores(rng, runs[0], seed, shards, share)


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_tree_that_draws_over_shards(seed: int) -> None:
    """Each element draws the same on any number of processes."""
    runs = [Run(seed, 4, 2, count, draws=True).steps() for count in counts_of(4)]
    assert all(trees.same(found, runs[0]) for found in runs)
    check_restores(random.Random(seed), runs[0], seed, 4, 2, True)


@pytest.mark.parametrize("seed", range(200, 203))
def test_a_tree_over_shards_with_workers(seed: int) -> None:
    whole = Run(seed, 4, 2, 4).steps()
    running = Run(seed, 4, 2, 2, workers=1)
    assert trees.same(running.steps(2), whole[:2])
    state = running.state()
    resumed = Run(seed, 4, 2, 1, workers=3)
    resumed.go_to(state)
    assert trees.same(resumed.steps(), whole[2:])
    assert trees.same(running.steps(), whole[2:])
    running.close()
    resumed.close()
