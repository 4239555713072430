"""Virtual shards: a run on few processes has the steps of one on as many as it may ever have."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors, transforms
from tests.product.pieces import Odd, shuffled
from tests.product.shards import KINDS, close, expected, flat, joint, processes, restore, save, step
from tests.states.forms import form

Shard = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


def virtual(kind: str, length: int, count: int, drop: bool, **more: Any) -> list[Any]:
    """The processes of a run on 8 virtual shards, whose global batch is 16."""
    return processes(kind, length, count, 16 // count, drop, virtual_shards=8, **more)


def taken(iterators: list[Any]) -> list[list[int]]:
    found = []
    while rows := step(iterators):
        found.append(rows)
    return found


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_has_the_steps_of_eight(kind: str, drop: bool) -> None:
    whole = [flat(batches) for batches in expected(kind, 75, 8, 2, drop)]
    assert len(whole) > 3
    for count in (1, 2, 4, 8):
        assert taken(virtual(kind, 75, count, drop)) == whole
    workers = virtual(kind, 75, 2, drop, worker_count=1)
    assert taken(workers) == whole
    close(workers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_grows_and_shrinks(kind: str) -> None:
    """The states are those of all processes, as JSON; any number that divides eight goes on."""
    whole = [flat(batches) for batches in expected(kind, 150, 8, 2, False)]
    for seed in range(5):
        rng = random.Random(seed)
        running, found, counts = virtual(kind, 150, rng.choice([1, 2, 4]), False), [], []
        while rows := step(running):
            found.append(rows)
            if rng.random() < 0.5:
                counts.append(rng.choice([1, 2, 4, 8]))
                state = joint(running)
                running = virtual(kind, 150, counts[-1], False)
                for iterator in running:
                    iterator.set_state(state)
        assert found == whole
        assert len(set(counts)) > 1


@pytest.mark.parametrize("counts", [(2, 8), (1, 4), (4, 1, 2), (8, 1, 1, 8)])
def test_a_checkpoint_goes_on_with_another_number(
    counts: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [flat(batches) for batches in expected("filter", 150, 8, 2, False)]
    found = []
    for run, count in enumerate(counts):
        running = virtual("filter", 150, count, False)
        if run:
            restore(running, tmp_path / f"{run - 1}", monkeypatch)
        found.append(step(running))
        save(running, tmp_path / f"{run}", monkeypatch)
    assert found + taken(running) == whole


def test_its_own_state_is_enough_on_the_same_number() -> None:
    whole = [flat(batches) for batches in expected("filter", 150, 8, 2, False)]
    two = virtual("filter", 150, 2, False)
    step(two)
    again = virtual("filter", 150, 2, False)
    for iterator, old in zip(again, two, strict=True):
        iterator.set_state(old.get_state())
    assert taken(again) == whole[1:]


def test_a_stream_of_known_counts_needs_none() -> None:
    loader = grain.load(
        range(12), batch_size=2, num_epochs=1, shard_options=Shard(1, 2), virtual_shards=6
    )
    plain = grain.load(range(12), batch_size=2, num_epochs=1, shard_options=Shard(1, 2))
    iterator, other = iter(loader), iter(plain)
    assert next(iterator).tolist() == next(other).tolist() == [1, 3]
    assert iterator.get_state() == other.get_state()
    assert len(loader) == 3


def refusal(*todo: Any, **settings: Any) -> str:
    with pytest.raises(ValueError, match="virtual_shards") as caught:
        shuffled(*todo, **settings)
    return str(caught.value)


def test_what_cannot_be_dealt_out_is_refused_at_the_call() -> None:
    batch = transforms.Batch(4)
    three = refusal(Odd(), batch, shard_options=Shard(0, 3), virtual_shards=8)
    assert "the 3 shards of shard_options. Give a multiple of 3" in three
    assert "run on 1, 2, 4 or 8 shards" in three
    assert "Give a batch size that 8 divides" in refusal(Odd(), batch, virtual_shards=8)
    one_batch = "does not end by one Batch, without lanes"
    assert one_batch in refusal(Odd(), virtual_shards=2)
    assert one_batch in refusal(Odd(), batch, transforms.Batch(2), virtual_shards=2)
    assert one_batch in refusal(Odd(), batch, virtual_shards=2, lanes=2)
    sampler = grain.samplers.IndexSampler(20, Shard(0, 2), num_epochs=1)
    with pytest.warns(UserWarning, match="sampler"):
        assert "the sampler shards" in refusal(
            Odd(), batch, sampler=sampler, shard_options=Shard(0, 2), virtual_shards=2
        )
    with pytest.raises(ValueError, match="virtual_shards"):
        shuffled(Odd(), batch, virtual_shards=0)


def test_a_state_of_another_number_is_refused_by_both() -> None:
    four = processes("filter", 150, 2, 8, False, virtual_shards=4)
    step(four)
    for iterator in virtual("filter", 150, 2, False):
        with pytest.raises(errors.StateError, match=r"begun with 4 .*virtual_shards=8\. Write"):
            iterator.set_state(joint(four))
    open_to_any = processes("filter", 150, 1, 16, False)[0]
    open_to_any.set_state(joint(four))
    rows = next(open_to_any).tolist()
    assert rows == flat(expected("filter", 150, 4, 4, False)[1])


def test_numbers_that_do_not_divide_are_refused_with_those_that_do() -> None:
    two = virtual("filter", 150, 2, False)
    step(two)
    iterator = processes("filter", 150, 3, 6, False)[0]
    with pytest.raises(errors.StateError, match=r"begun with 8 .*on 1, 2, 4 or 8 shards"):
        iterator.set_state(joint(two))


def test_load_takes_them_and_a_random_map_draws_the_same() -> None:
    class Noise(transforms.RandomMap):
        def random_map(self, element: int, rng: np.random.Generator) -> int:
            return int(element) * 1000 + int(rng.integers(1000))

    def rows(count: int) -> list[list[int]]:
        return taken(
            [
                iter(
                    grain.load(
                        range(60),
                        seed=1,
                        num_epochs=1,
                        transformations=[Noise(), Odd()],
                        batch_size=8 // count,
                        shard_options=Shard(index, count),
                        virtual_shards=4,
                    )
                )
                for index in range(count)
            ]
        )

    assert rows(1) == rows(2) == rows(4)


def test_the_form_of_the_state_does_not_change() -> None:
    (alone,) = virtual("filter", 150, 1, False)
    forms = set()
    for _ in range(6):
        forms.add(form(json.loads(alone.get_state())))
        next(alone)
    assert len(forms) == 1
