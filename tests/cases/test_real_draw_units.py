"""Draws of `random` and `np.random` in steps are a record's own, whoever shares its batch."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import grain_jax as grain

COUNT = 24


class Draw(grain.transforms.Map):
    def map(self, element: int) -> dict[str, Any]:
        normal = float(np.random.randn())  # NumPy keeps a second one for the next call
        return {
            "n": element,
            "numpy": np.random.randint(1 << 30),
            "x": normal,
            "y": random.random(),
        }


def loader(shard: int = 0, shards: int = 1, batch: int | None = 12, **settings: Any) -> Any:
    return grain.load(
        list(range(COUNT)),
        num_epochs=1,
        seed=3,
        transformations=[Draw()],
        batch_size=batch,
        shard_options=grain.sharding.ShardOptions(shard, shards),
        **settings,
    )


def rows(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    return list(zip(*(np.asarray(batch[k]).reshape(-1).tolist() for k in batch), strict=True))


def drawn() -> list[tuple[Any, ...]]:
    """What each record draws, by itself."""
    return [one for element in loader(batch=None) for one in rows(element)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 5, 12])
def test_the_size_of_the_batch_does_not_matter(
    batch: int, workers: int, no_process_left: None
) -> None:
    with loader(batch=batch, worker_count=workers) as batches:
        assert [one for found in batches for one in rows(found)] == drawn()
    assert len({one[1] for one in drawn()}) == COUNT


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_another_number_of_shards_goes_on_with_the_same_draws(shards: int) -> None:
    two = [iter(loader(shard, 2, 6)) for shard in range(2)]
    for iterator in two:
        next(iterator)
    state = two[0].get_state()
    others = [iter(loader(shard, shards, 12 // shards)) for shard in range(shards)]
    found = []
    for iterator in others:
        iterator.set_state(state)
        found += rows(next(iterator))
    assert sorted(found) == sorted(drawn()[12:])


def test_a_batch_has_draws_of_its_own() -> None:
    class Noise(grain.transforms.Map):
        def map(self, batch: Any) -> Any:
            return {**batch, "noise": np.random.randint(1 << 30, size=len(batch["n"]))}

    def batches(**settings: Any) -> list[Any]:
        whole = grain.load(
            list(range(COUNT)),
            num_epochs=1,
            transformations=[Draw(), grain.transforms.Batch(6), Noise()],
            **settings,
        )
        with whole:
            return [{k: v.tolist() for k, v in batch.items()} for batch in whole]

    found = batches()
    assert found == batches(worker_count=2)
    numbers = [n for batch in found for n in (*batch["noise"], *batch["numpy"])]
    assert len(set(numbers)) == 2 * COUNT


def test_loaders_in_several_threads_keep_to_their_draws() -> None:
    def run(found: list[Any]) -> None:
        for _ in range(10):
            found.append([one for batch in loader(batch=3) for one in rows(batch)])

    results: list[list[Any]] = [[] for _ in range(3)]
    threads = [threading.Thread(target=run, args=(found,)) for found in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[drawn()] * 10] * 3


class Split(grain.transforms.Filter):
    def filter(self, name: str) -> bool:
        return hash(name) % 2 == 0


class Key:
    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)


class Keyed(grain.transforms.Map):
    def map(self, name: str) -> int:
        return len({Key(name): 1})


def split(operation: Any, **settings: Any) -> None:
    grain.load(["a", "b"], num_epochs=1, transformations=[operation], **settings).close()
    with grain.load(["a", "b"], num_epochs=1, transformations=[operation], **settings) as loader:
        list(loader)


def test_hashes_of_text_are_told_with_workers(
    monkeypatch: pytest.MonkeyPatch, no_process_left: None
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.warns(UserWarning, match=r"Split\.filter calls hash\(\), which for"):
        split(Split(), worker_count=1)
    split(Split())
    split(Keyed(), worker_count=1)
    split(Split(), worker_count=1, ignore_globals=[f"{__name__}.Split.filter"])
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    split(Split(), worker_count=1)
