"""One state for an epoch and the place in it; loops over what has come to its end are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")

EPOCHS, SIZE = 3, 10


def loader(workers: int) -> Any:
    return grain.load(
        range(SIZE), num_epochs=EPOCHS, shuffle=True, seed=3, batch_size=4, worker_count=workers
    )


def dataset(workers: int) -> Any:
    stream = grain.MapDataset.range(SIZE).shuffle(seed=3).repeat(EPOCHS).to_iter_dataset().batch(4)
    if workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return stream


def filtered(workers: int) -> Any:
    stream = grain.MapDataset.range(SIZE).shuffle(seed=3).repeat(EPOCHS).to_iter_dataset()
    stream = stream.filter(lambda number: bool(number % 3)).batch(2)
    if workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return stream


PIPELINES = pytest.mark.parametrize("make", [loader, dataset, filtered])
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def through(epoch: Any) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in epoch]


@PIPELINES
@WORKERS
def test_a_state_at_any_batch_restores_epoch_and_place(make: Any, workers: int) -> None:
    pipeline = make(workers)
    expected = [through(epoch) for epoch in make(0).epochs()]
    assert len(expected) == EPOCHS
    states: list[tuple[int, int, Any]] = []
    epochs = pipeline.epochs()
    assert epochs.get_state() == {"epoch": 0, "state": None}
    for epoch in epochs:
        for number, batch in enumerate(epoch, 1):
            assert np.asarray(batch).tolist() == expected[epoch.number][number - 1]
            states.append((epoch.number, number, json.loads(json.dumps(epochs.get_state()))))
    for at, number, state in states:
        again = pipeline.epochs()
        again.set_state(state)
        assert again.get_state() == state
        found = [(epoch.number, through(epoch)) for epoch in again]
        rest = [(at, expected[at][number:])]
        assert found == rest + [(later, expected[later]) for later in range(at + 1, EPOCHS)]
    if make is loader:
        pipeline.close()


@WORKERS
def test_the_state_is_that_of_the_last_batch_behind_the_device_stage(workers: int) -> None:
    source = grain.load(range(16), num_epochs=2, batch_size=4, worker_count=workers)
    epochs = source.epochs()
    next(epochs)
    epoch = next(epochs)
    with grain.prefetch_to_device(epoch) as batches:
        assert len(batches) == len(epoch) == 4
        assert np.asarray(next(batches)).tolist() == [0, 1, 2, 3]
        state = epochs.get_state()
    again = source.epochs()
    again.set_state(state)
    assert through(next(again)) == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert list(again) == []
    source.close()


def test_a_file_of_a_checkpoint(tmp_path: Path) -> None:
    epochs = loader(0).epochs(start=1)
    next(next(epochs))
    (tmp_path / "one").mkdir()
    handler = grain.checkpoint.CheckpointHandler()
    handler.save(tmp_path / "one", epochs)
    again = loader(0).epochs()
    handler.restore(tmp_path / "one", again)
    assert again.get_state() == epochs.get_state()
    assert next(again).number == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"epoch": 9, "state": None}, "the state is in epoch 9, and there are 3 here"),
        ({"epoch": -1, "state": None}, "field 'epoch' of the state is -1"),
        ({"epoch": True, "state": None}, "field 'epoch' of the state is True"),
        ({"grain_jax": 2}, "this is no state of epochs"),
        (3, "this is no state of epochs"),
        ({"epoch": 1, "state": {"grain_jax": 2}}, "field"),
        ({"processes": [{"epoch": e, "state": None} for e in (0, 1)]}, "in several epochs"),
    ],
)
def test_other_states_are_refused_and_change_nothing(state: Any, message: str) -> None:
    epochs = loader(0).epochs()
    first = next(epochs)
    batch = next(first)
    before = epochs.get_state()
    with pytest.raises(grain.errors.StateError, match=message):
        epochs.set_state(state)
    assert epochs.get_state() == before
    assert len([batch, *first]) == 3
    assert [epoch.number for epoch in epochs] == [1, 2]


@WORKERS
def test_a_second_loop_over_an_epoch_or_a_stage_is_refused(workers: int) -> None:
    source = grain.load(range(16), num_epochs=1, batch_size=4, worker_count=workers)
    (epoch,) = source.epochs()
    stage = grain.prefetch_to_device(source)
    streamed = next(grain.MapDataset.range(4).to_iter_dataset().epochs())
    for one in (epoch, stage, streamed):
        begin = one.get_state()
        next(one)
        assert len(list(one)) == 3
        with pytest.raises(ValueError, match=r"come to its end.*for epoch in loader\.epochs\(\)"):
            iter(one)
        assert next(one, None) is None  # `next` is as that of any iterator
        one.set_state(begin)
        assert len(list(one)) == 4
    stage.close()
    source.close()
    plain = iter(grain.load(range(4), num_epochs=1))
    assert (len(list(plain)), list(plain)) == (4, [])


def test_lengths_are_known_wherever_they_can_be() -> None:
    stream = grain.MapDataset.range(10).to_iter_dataset().batch(4)
    assert len(iter(stream)) == 3  # type: ignore[arg-type]
    assert bool(iter(stream.filter(bool)))
    with pytest.raises(TypeError, match="unknown"):
        len(iter(stream.filter(bool)))  # type: ignore[arg-type]
