"""What operations do to records of a source that hands out what it holds reaches no later epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain


class Corpus:
    """Holds its records, as most sources in memory do."""

    def __init__(self) -> None:
        self.kept = [{"n": i, "tokens": [i]} for i in range(5)]
        self.images = np.arange(20.0).reshape(5, 4)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return {**self.kept[index], "image": self.images[index]}


class Many(Corpus):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.kept[index] | {"image": self.images[index]} for index in indices]


class Stacks:
    def __init__(self) -> None:
        self.images = np.arange(20.0).reshape(5, 4)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return self.images[index]

    def __getbatch__(self, indices: Any) -> Any:
        return self.images[indices[0] : indices[-1] + 1]


class Edit(grain.transforms.Map):
    def map(self, record: Any) -> Any:
        record["tokens"].append(-1)
        record["image"] = record["image"] + 100
        return record


class Look(grain.transforms.Map):
    def map(self, record: Any) -> Any:
        return record["n"], len(record["tokens"]), record["image"].tolist()


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Corpus, Many])
def test_epochs_are_equal(kind: type[Corpus], workers: int, no_process_left: None) -> None:
    source = kind()
    right = [(i, 2, (np.arange(4.0) + 4 * i + 100).tolist()) for i in range(5)]
    with grain.load(
        source, num_epochs=3, worker_count=workers, transformations=[Edit(), Look()]
    ) as loader:
        for _ in range(2):
            assert list(loader) == right * 3
    dataset = grain.MapDataset.source(source).map(Edit()).map(Look())
    assert [dataset[i] for i in (0, 0, 1)] == [right[0], right[0], right[1]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Corpus, Many])
def test_a_row_of_an_array_that_the_source_keeps_is_read_only(
    kind: type[Corpus], workers: int, no_process_left: None
) -> None:
    class InPlace(grain.transforms.Map):
        def map(self, record: Any) -> Any:
            record["image"] += 100
            return record

    source = kind()
    with (
        grain.load(
            source, num_epochs=1, worker_count=workers, transformations=[InPlace()]
        ) as loader,
        pytest.raises(ValueError, match="read-only") as caught,
    ):
        next(iter(loader))
    assert "x = x * 2" in "".join(caught.value.__notes__)
    assert source.images.tolist() == np.arange(20.0).reshape(5, 4).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_a_source_stacks_are_the_users(workers: int, no_process_left: None) -> None:
    class Double(grain.transforms.Map):
        def map(self, batch: Any) -> Any:
            return batch * 2

    source = Stacks()
    with grain.load(source, num_epochs=2, batch_size=5, worker_count=workers) as loader:
        first, second = loader
        assert workers or not first.flags.writeable  # it is the source's memory
        assert second.tolist() == np.arange(20.0).reshape(5, 4).tolist()
    steps = [grain.transforms.Batch(5), Double()]
    with grain.load(source, num_epochs=2, transformations=steps, worker_count=workers) as loader:
        for batch in loader:
            assert batch.tolist() == (2 * np.arange(20.0).reshape(5, 4)).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_flat_map_may_return_one_record_twice(workers: int, no_process_left: None) -> None:
    class Twice(grain.transforms.FlatMap):
        max_fan_out = 2

        def flat_map(self, record: Any) -> Any:
            return [record, record]

    steps = [Twice(), Edit(), Look()]
    with grain.load(Corpus(), num_epochs=1, transformations=steps, worker_count=workers) as loader:
        assert [(n, count) for n, count, _ in loader] == [(i // 2, 2) for i in range(10)]
