"""What one process of a job cannot make, the others learn of: they wait for it in `next`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

import grain_jax as grain
from grain_jax._values import checkpointable, notices
from tests.values.store import process_1_of_2


class Gone:
    """A source that cannot say how long it is."""

    def __len__(self) -> int:
        raise OSError("disk gone")

    def __getitem__(self, index: int) -> int:
        return index


ten = grain.MapDataset.range(10)
sampler = grain.samplers.IndexSampler(10)

FAILING: dict[str, Callable[[], Any]] = {
    "load": lambda: grain.load(Gone()),
    "load, workers": lambda: grain.load([1], worker_count=-1),
    "load, buffer": lambda: grain.load([1], worker_buffer_size=0),
    "load, epochs": lambda: grain.load([1], num_epochs=0),
    "load, batch": lambda: grain.load([1], batch_size=0),
    "load, list": lambda: grain.load([1], transformations=3),  # type: ignore[arg-type]
    "load, empty": lambda: grain.load([]),
    "DataLoader": lambda: grain.DataLoader(data_source=Gone(), sampler=sampler),
    "DataLoader, workers": lambda: grain.DataLoader(
        data_source=range(10), sampler=sampler, worker_count=-1
    ),
    "DataLoader, reads": lambda: grain.DataLoader(
        data_source=range(10),
        sampler=sampler,
        read_options=3,  # type: ignore[arg-type]
    ),
    "epochs": lambda: grain.load([1], num_epochs=1).epochs(-1),
    "source": lambda: grain.MapDataset.source(Gone()),
    "apply": lambda: ten.apply(3),  # type: ignore[arg-type]
    "batch": lambda: ten.batch(0),
    "concatenate": lambda: grain.MapDataset.concatenate([]),
    "flat_map": lambda: ten.flat_map(3),  # type: ignore[arg-type]
    "mix": lambda: grain.MapDataset.mix([ten], weights=[-1]),
    "random_map": lambda: ten.random_map(lambda x, rng: x),
    "repeat": lambda: ten.repeat(0),
    "seed": lambda: ten.seed(-1),
    "shuffle": lambda: ten.shuffle(),
    "slice": lambda: ten[::0],
    "to_iter_dataset": lambda: ten.to_iter_dataset(3),  # type: ignore[arg-type]
    "mp_prefetch": lambda: ten.to_iter_dataset().mp_prefetch(3),  # type: ignore[arg-type]
    "stream, map": lambda: ten.to_iter_dataset().map(3),  # type: ignore[arg-type]
    "operator": lambda: grain.experimental.WindowShuffleMapDataset(ten, window_size=0, seed=1),
    "device_put": lambda: grain.experimental.device_put(ten, None, cpu_buffer_size=-1),
    "device_put, iter": lambda: iter(grain.experimental.device_put(ten, {})),
    "prefetch_to_device": lambda: grain.prefetch_to_device(ten, buffer_size=0),
    "ElasticIterator": lambda: grain.experimental.ElasticIterator(
        ten, 0, grain.sharding.NoSharding()
    ),
    "IndexSampler": lambda: grain.samplers.IndexSampler(0),
    "SequentialSampler": lambda: grain.samplers.SequentialSampler(0),
    "ShardOptions": lambda: grain.sharding.ShardOptions(2, 2),
    "ShardBySharding": lambda: grain.sharding.ShardBySharding("all"),
    "Batch": lambda: grain.transforms.Batch(0),
    "ReadOptions": lambda: grain.ReadOptions(-1),
    "ErrorPolicy": lambda: grain.ErrorPolicy(max_count=-1),
    "MultiprocessingOptions": lambda: grain.MultiprocessingOptions(-1),
}


def told(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Exception, Any]:
    """The error of a call, and what the other process finds."""
    process_1_of_2(monkeypatch)
    with pytest.raises((OSError, RuntimeError, TypeError, ValueError)) as raised:
        call()
    return raised.value, notices.read(1)


@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING)
def test_what_cannot_be_made_is_told(
    call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    error, notice = told(call, monkeypatch)
    assert notice is not None
    assert notice["kind"] == "failed"
    assert notice["text"].startswith("as it made its ")
    assert notice["text"].endswith(f": {type(error).__name__}: {error}")
    (note,) = error.__notes__
    assert note.startswith("This process is one of 2 of a job.")


def test_a_loader_that_is_closed_makes_no_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = grain.load([1])
    loader.close()
    _, notice = told(lambda: iter(loader), monkeypatch)
    assert notice is not None


@pytest.mark.parametrize("state", [b"{}", b"nothing"])
def test_a_position_that_cannot_be_set_is_told(
    state: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for iterator in (iter(grain.load([1, 2])), iter(ten.to_iter_dataset())):
        error, notice = told(lambda i=iterator: i.set_state(state), monkeypatch)  # type: ignore[misc]
        assert notice is not None
        assert notice["text"].startswith(
            f"as its position was set: {type(error).__name__}: {str(error)[:40]}"
        )


def test_a_position_that_cannot_be_restored_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterator = iter(grain.load([1, 2]))

    def restore() -> None:
        checkpointable.restore_state(iterator, tmp_path, index=1, count=2)

    error, notice = told(restore, monkeypatch)
    assert "process_1-of-2.json" in str(error)
    assert notice["text"].startswith("as its position was restored: StateError: ")
