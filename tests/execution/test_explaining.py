"""A pipeline as a tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain


def same(element: Any) -> Any:
    return element


def late(element: Any) -> bool:
    return bool(element["x"].sum() >= 0)


RECORDS = [{"x": np.zeros((3, 4), np.float32), "name": "a"} for _ in range(20)]


def workers(stream: Any) -> Any:
    return stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))


def test_a_loader_says_what_is_done_where_and_what_a_state_holds() -> None:
    loader = grain.load(
        RECORDS,
        num_epochs=2,
        transformations=[grain.python.MapOperation(same)],
        batch_size=4,
        worker_count=2,
        shard_options=grain.sharding.ShardOptions(1, 2),
    )
    lines = loader.explain(sample=True).splitlines()
    assert lines[:3] == [
        "loader: 5 elements",
        "└─ step 2: batch(4) → {x: float32[4,3,4], name: object[4]}  [2 workers]",
        "   └─ step 1: map(same) → {x: float32[3,4], name: str}  [2 workers]",
    ]
    assert "IndexSampler(num_records=20" in lines[3]
    assert (
        lines[4].strip()
        == "└─ source: list, 20 records → {x: float32[3,4], name: str}  [2 workers]"
    )
    assert lines[5] == "sharding: shard 1 of 2: positions 1, 3, … of the whole order"
    assert lines[6].startswith("state: one number, the position in the whole order")
    assert "→ ?" in loader.explain()  # nobody has said, and nothing was read
    loader.close()


def test_a_mixture_has_a_branch_for_each_part_and_says_what_stays_here() -> None:
    web = grain.MapDataset.source(RECORDS).map(same).to_iter_dataset().filter(late)
    news = grain.IterDataset.from_iterable(RECORDS)
    mixed = grain.IterDataset.mix({"web": web, "news": news}, {"web": 2, "news": 1})
    text = workers(mixed.map(same).batch(2)).explain()
    assert repr(text) == text
    lines = [line.strip("│├└─ ") for line in text.splitlines()]
    found = [line for line in lines if line.startswith(("web: ", "news: "))]
    assert found == [
        "web: step 2: filter(late) → ?  [2 workers]",
        "news: source: from_iterable(a list) → ?  [trainer, in a thread]",
    ]
    assert "step 5: batch(2) → ?  [2 workers]" in lines
    assert lines[-1].startswith("state: a place in each part, with what iterables say of their own")


class Whole(grain.python.Operation):
    def __call__(self, records: Any) -> Any:
        yield from records


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (lambda: {}, "sharding: none: each process that runs this has all of it"),
        (
            lambda: {"lanes": 2},
            "sharding: none: each process that runs this has all of it; 2",
        ),
        (lambda: {"operations": [Whole()]}, "step 1: operation(Whole)  [trainer, over the ordered"),
    ],
    ids=["none", "lanes", "operation"],
)
def test_what_is_said_of_other_loaders(given: Any, expected: str) -> None:
    sampler = grain.samplers.IndexSampler(20, num_epochs=1)
    loader = grain.DataLoader(data_source=RECORDS, sampler=sampler, **given())
    assert expected in loader.explain()


def test_explaining_runs_nothing_of_the_users() -> None:
    def fails(element: Any) -> Any:
        raise AssertionError

    dataset = grain.MapDataset.range(4).map(fails)
    assert "step 1: map" in dataset.explain()
    assert "int64[]" in dataset.to_iter_dataset().explain()
    with pytest.raises(AssertionError):
        dataset.explain(sample=True)
