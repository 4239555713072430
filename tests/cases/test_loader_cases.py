"""Cases from users' reports that concern the loader; the numbers are those of the list of cases."""

from __future__ import annotations

import collections
import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.cases import scripts

Batch = grain.transforms.Batch
pytestmark = pytest.mark.usefixtures("no_process_left")


def _loader(source: Any, *operations: Any, **settings: Any) -> grain.DataLoader:
    settings.setdefault("sampler", grain.samplers.SequentialSampler(len(source)))
    return grain.DataLoader(data_source=source, operations=operations, **settings)


def test_case_1_script_without_a_main_guard(tmp_path: Path) -> None:
    lines = scripts.output(
        tmp_path,
        """
        import jax, jax.numpy as jnp, numpy as np
        import grain_jax as grain
        with open("counter", "a") as file:
            file.write("x")
        weights = jnp.ones(3)
        loader = grain.load(np.arange(8), num_epochs=1, worker_count=2)
        print(*[int(x) for x in loader], float(weights.sum()))
        loader.close()
        """,
    )
    assert lines == ["0 1 2 3 4 5 6 7 3.0"]
    assert (tmp_path / "counter").read_text() == "x"


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 7])
def test_case_2_batch_sizes(workers: int) -> None:
    with _loader(np.arange(34), Batch(16), worker_count=workers) as loader:
        batches = list(loader)
    assert [len(batch) for batch in batches] == [16, 16, 2]
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(34))


@pytest.mark.parametrize("workers", [0, 2])
def test_case_2_exact_fit(workers: int) -> None:
    with _loader(np.arange(48), Batch(16, drop_remainder=True), worker_count=workers) as loader:
        assert len(list(loader)) == 3


@pytest.mark.parametrize("by", ["loader", "sampler"])
def test_case_3_every_record_once_an_epoch_over_all_shards(by: str) -> None:
    seen: collections.Counter[int] = collections.Counter()
    for index in range(3):
        shard = grain.sharding.ShardOptions(index, 3)
        own = shard if by == "sampler" else grain.sharding.NoSharding()
        sampler = grain.samplers.IndexSampler(11, own, shuffle=True, seed=4, num_epochs=3)
        loader = _loader(
            np.arange(11), sampler=sampler, shard_options=shard if by == "loader" else None
        )
        seen.update(int(x) for x in loader)
    assert seen == dict.fromkeys(range(11), 3)


def test_case_4_class_of_the_script_comes_back(tmp_path: Path) -> None:
    lines = scripts.output(
        tmp_path,
        """
        import dataclasses
        import numpy as np
        import grain_jax as grain

        @dataclasses.dataclass
        class Example:
            value: int

        class Wrap(grain.transforms.Map):
            def map(self, element):
                return Example(int(element))

        loader = grain.load(np.arange(6), num_epochs=1, transformations=[Wrap()], worker_count=1)
        found = list(loader)
        print(found == [Example(i) for i in range(6)], all(type(x) is Example for x in found))
        loader.close()
        """,
    )
    assert lines == ["True True"]


def test_case_6_exception_of_the_script(tmp_path: Path) -> None:
    lines = scripts.output(
        tmp_path,
        """
        import time, traceback
        import numpy as np
        import grain_jax as grain

        class BadRecord(Exception):
            def __init__(self, number, reason):
                super().__init__(f"{number}: {reason}")
                self.number = number

        class Check(grain.transforms.Map):
            def map(self, element):
                if element == 9:
                    raise BadRecord(int(element), "torn")
                return element

        loader = grain.load(
            np.arange(20), num_epochs=1, transformations=[Check()], batch_size=4, worker_count=2
        )
        iterator = iter(loader)
        print(next(iterator).tolist(), next(iterator).tolist())
        try:
            next(iterator)
        except BadRecord as error:
            print(type(error).__name__, error.number, error)
            print("|".join(error.__notes__).replace(chr(10), "|"))
        loader.close()
        """,
    )
    assert lines[0] == "[0, 1, 2, 3] [4, 5, 6, 7]"
    assert lines[1] == "BadRecord 9 9: torn"
    assert "step 1: map(Check)" in lines[2]
    assert "position 9 (record key 9)" in lines[2]
    assert "script.py:14" in lines[2]


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
def test_case_7_resume_with_another_worker_count(workers: int) -> None:
    sampler = grain.samplers.IndexSampler(64, shuffle=True, seed=5, num_epochs=1)
    expected = [b.tolist() for b in _loader(np.arange(64), Batch(4), sampler=sampler)]
    with _loader(np.arange(64), Batch(4), sampler=sampler, worker_count=2) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = iterator.get_state()
    with _loader(np.arange(64), Batch(4), sampler=sampler, worker_count=workers) as loader:
        iterator = iter(loader)
        iterator.set_state(state)
        assert [b.tolist() for b in iterator] == expected[5:]


@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_case_8_resume_on_another_shard_count(shards: int) -> None:
    def iterators(count: int) -> list[grain.DataLoaderIterator]:
        sampler = grain.samplers.IndexSampler(96, shuffle=True, seed=6, num_epochs=1)
        return [
            iter(
                _loader(
                    np.arange(96),
                    Batch(4),
                    sampler=sampler,
                    shard_options=grain.sharding.ShardOptions(index, count),
                )
            )
            for index in range(count)
        ]

    begun = iterators(2)
    seen = [int(x) for it in begun for _ in range(5) for x in next(it)]
    states = {it.get_state() for it in begun}
    assert len(states) == 1
    rest = iterators(shards)
    for iterator in rest:
        iterator.set_state(next(iter(states)))
    seen += [int(x) for it in rest for batch in it for x in batch]
    assert sorted(seen) == list(range(96))


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_case_8_resume_of_filtered_shards(shards: int) -> None:
    class Third(grain.transforms.Filter):
        def filter(self, element: Any) -> bool:
            return bool(element % 3)

    def iterators(count: int) -> list[grain.DataLoaderIterator]:
        options = [grain.sharding.ShardOptions(index, count) for index in range(count)]
        return [
            iter(_loader(np.arange(96), Third(), Batch(4), shard_options=one)) for one in options
        ]

    begun = iterators(2)
    seen = [int(x) for it in begun for _ in range(5) for x in next(it)]
    states = [it.get_state() for it in begun]
    rest = iterators(shards)
    with pytest.raises(ValueError, match=rf"shard 1 of 2 .* shard 0 of {shards}.*1 or 2 shards"):
        rest[0].set_state(states[1])
    together = json.dumps({"processes": list(map(json.loads, states))}).encode()
    if shards != 1:
        with pytest.raises(ValueError, match=rf"2 shards.* over {shards}.* on 1 or 2 shards"):
            rest[0].set_state(together)
        return
    rest[0].set_state(together)
    seen += [int(x) for batch in rest[0] for x in batch]
    assert sorted(seen) == [x for x in range(96) if x % 3]


def test_case_15_what_a_worker_sees() -> None:
    class Look(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            import os
            import sys

            return ("jax" in sys.modules, os.environ["JAX_PLATFORMS"])

    with _loader(np.arange(2), Look(), worker_count=1) as loader:
        assert list(loader) == [(False, "cpu")] * 2


def test_case_16_getitems_is_asked_once_a_batch() -> None:
    class Source:
        def __init__(self) -> None:
            self.calls: list[list[int]] = []

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> int:
            raise AssertionError("one by one")

        def __getitems__(self, indices: list[int]) -> list[int]:
            self.calls.append(list(indices))
            time.sleep(0.003)  # waiting is no reason to ask for other blocks
            return [10 * index for index in indices]

    source = Source()
    sampler = grain.samplers.IndexSampler(1000, shuffle=True, seed=1, num_epochs=1)
    got = np.concatenate(list(_loader(source, Batch(50), sampler=sampler)))
    assert len(source.calls) == 20
    assert got.tolist() == [10 * key for call in source.calls for key in call]
    assert sorted(got.tolist()) == [10 * key for key in range(1000)]


def test_case_16_duplicates_are_kept() -> None:
    class Source:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            raise AssertionError("one by one")

        def __getitems__(self, indices: list[int]) -> list[int]:
            return list(indices)

    class Twice:
        def __getitem__(self, index: int) -> grain.RecordMetadata:
            return grain.RecordMetadata(index, [2, 2, 0, 2][index])

        def __len__(self) -> int:
            return 4

    assert [b.tolist() for b in _loader(Source(), Batch(4), sampler=Twice())] == [[2, 2, 0, 2]]


def test_case_17_reads_ahead_a_few_batches() -> None:
    class Source:
        reads = 0

        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, index: int) -> int:
            Source.reads += 1
            return index

    iterator = iter(_loader(Source(), Batch(8)))
    next(iterator)
    time.sleep(1.5)
    assert Source.reads <= 4 * 8
    iterator.close()


def test_case_18_length() -> None:
    assert len(_loader(np.arange(34), Batch(16))) == 3
    assert len(_loader(np.arange(34), Batch(16, drop_remainder=True))) == 2
    for index in range(2):
        shard = grain.sharding.ShardOptions(index, 2)
        assert len(_loader(np.arange(34), Batch(16), shard_options=shard)) == 2
    endless = _loader(np.arange(34), Batch(16), sampler=grain.samplers.IndexSampler(34))
    with pytest.raises(TypeError, match="no end"):
        len(endless)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_case_21_in_place_change_is_refused(workers: int) -> None:
    class InPlace(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            element *= 2
            return element

    class Fresh(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return element * 2

    data = [np.full(3, float(i)) for i in range(4)]
    sampler = grain.samplers.IndexSampler(4, num_epochs=3)
    with _loader(data, InPlace(), sampler=sampler, worker_count=workers) as loader:
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(ValueError, match="read-only") as caught:
                next(iterator)
            assert "x = x * 2" in "".join(caught.value.__notes__)
    with _loader(data, Fresh(), sampler=sampler, worker_count=workers) as loader:
        got = [float(x[0]) for x in loader]
    assert got == [0.0, 2.0, 4.0, 6.0] * 3
    assert [float(x[0]) for x in data] == [0.0, 1.0, 2.0, 3.0]


class _Draw(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return (*(element if isinstance(element, tuple) else ()), int(rng.integers(1000)))


def _draws(seed: int, workers: int = 0) -> list[tuple[int, int]]:
    sampler = grain.samplers.IndexSampler(200, seed=seed, num_epochs=2)
    with _loader(
        list(range(200)), _Draw(), _Draw(), sampler=sampler, worker_count=workers
    ) as loader:
        return list(loader)


def test_case_22_draws_are_unrelated_and_equal_for_all_workers() -> None:
    ten, eleven = _draws(10), _draws(11)
    assert _draws(10, workers=2) == ten
    first, second = (np.array([pair[k] for pair in ten]) for k in range(2))
    # 400 pairs of numbers below 1000: by chance some 0.4 are equal, and the correlation is small.
    assert (first == second).sum() < 8
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    assert (first[:200] == first[200:]).sum() < 8
    for shift in range(-3, 4):
        mine = first[3:-3]
        other = np.array([pair[0] for pair in eleven])[3 + shift : len(eleven) - 3 + shift]
        assert (mine == other).sum() < 8


@pytest.mark.parametrize("count", [65_536, 65_537, 65_538, 262_145])
def test_case_23_permutations(count: int, reference_grain: ModuleType) -> None:
    ours = grain.samplers.IndexSampler(count, shuffle=True, seed=9, num_epochs=1)
    keys = ours.keys(np.arange(count))
    assert len(np.unique(keys)) == count
    assert (keys.min(), keys.max()) == (0, count - 1)
    theirs = reference_grain.samplers.IndexSampler(count, shuffle=True, seed=9, num_epochs=1)
    sample = [*range(0, count - 1, 997), count - 2]
    assert [int(keys[i]) for i in sample] == [theirs[i].record_key for i in sample]
    if count in (65_537, 262_145):
        assert keys[count - 1] == count - 1
    else:
        assert keys[count - 1] == theirs[count - 1].record_key


@pytest.mark.parametrize("drop", [False, True])
def test_case_24_steps_are_the_same_sets_for_every_shard_count(drop: bool) -> None:
    def steps(count: int) -> list[list[int]]:
        sampler = grain.samplers.IndexSampler(59, shuffle=True, seed=2, num_epochs=1)
        shards = [
            list(
                _loader(
                    np.arange(59),
                    Batch(12 // count, drop),
                    sampler=sampler,
                    shard_options=grain.sharding.ShardOptions(index, count),
                )
            )
            for index in range(count)
        ]
        assert len({len(shard) for shard in shards}) == 1
        return [sorted(np.concatenate(step).tolist()) for step in zip(*shards, strict=True)]

    one = steps(1)
    assert [len(step) for step in one] == [12] * 4 + ([] if drop else [11])
    for count in (2, 3, 4, 6):
        assert steps(count) == one
