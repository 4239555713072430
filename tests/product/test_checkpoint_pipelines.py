"""Checkpoints of the library's own iterators, and the examples of the API's documentation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from orbax.checkpoint.experimental import v1

import grain_jax as grain
from grain_jax._product import checkpoint as module
from grain_jax._values.errors import StateError

pytestmark = pytest.mark.usefixtures("no_process_left")


def loader(**settings: Any) -> grain.DataLoader:
    return grain.load(np.arange(64), num_epochs=1, shuffle=True, seed=3, batch_size=4, **settings)


def dataset() -> grain.IterDataset:
    return grain.MapDataset.range(64).shuffle(seed=3).batch(4).to_iter_dataset()


def device() -> Any:
    return grain.prefetch_to_device(loader())


PIPELINES = {
    "loader": lambda: iter(loader()),
    "workers": lambda: iter(loader(worker_count=2)),
    "dataset": lambda: iter(dataset()),
    "device": device,
}


def values(iterator: Any, count: int | None = None) -> list[list[int]]:
    taken = [np.asarray(next(iterator)).tolist() for _ in range(count or 0)]
    return taken if count is not None else [np.asarray(batch).tolist() for batch in iterator]


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("interface", ["manager", "v1"])
def test_every_iterator_continues_where_it_was_saved(
    tmp_path: Path, name: str, interface: str
) -> None:
    make = PIPELINES[name]
    with make() as reference:
        whole = values(reference)
    path = epath.Path(tmp_path) / "checkpoint"
    with make() as iterator, make() as other:
        assert values(iterator, 5) == whole[:5]
        if interface == "manager":
            with ocp.CheckpointManager(path) as manager:
                manager.save(
                    0, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(iterator))
                )
                assert values(iterator, 3) == whole[5:8]  # while it is written
            with ocp.CheckpointManager(path) as manager:
                restored = manager.restore(
                    0, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(other))
                )
            assert restored["data"] is other
        else:
            response = v1.save_checkpointables_async(path, {"data": iterator})
            assert values(iterator, 3) == whole[5:8]
            response.result()
            v1.load_checkpointables(path, {"data": other})
        assert values(other) == whole[5:]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_shards_of_the_loader_restore_on_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def shards(number: int) -> list[Any]:
        return [
            iter(loader(shard_options=grain.sharding.ShardOptions(index, number)))
            for index in range(number)
        ]

    handler, seen = grain.checkpoint.CheckpointHandler(), []
    for index, iterator in enumerate(shards(2)):
        seen += values(iterator, 5)
        monkeypatch.setattr(module, "process_position", lambda index=index: (index, 2))
        handler.save(tmp_path, iterator)
    for index, iterator in enumerate(shards(count)):
        monkeypatch.setattr(module, "process_position", lambda index=index: (index, count))
        seen += values(handler.restore(tmp_path, iterator))
    assert sorted(record for batch in seen for record in batch) == list(range(64))


def test_the_state_of_another_pipeline_is_refused_with_the_place_it_came_from(
    tmp_path: Path,
) -> None:
    handler = grain.checkpoint.CheckpointHandler()
    handler.save(tmp_path, iter(grain.load(range(64), num_epochs=1)))
    with pytest.raises(StateError) as caught:
        handler.restore(tmp_path, iter(grain.load(range(63), num_epochs=1)))
    assert "64" in str(caught.value)
    assert "63" in str(caught.value)
    assert caught.value.__notes__ == [f"The state was read from {tmp_path}."]


def test_the_older_names_are_the_same_classes() -> None:
    assert grain.python.PyGrainCheckpointHandler is grain.checkpoint.CheckpointHandler
    assert grain.python.PyGrainCheckpointSave is grain.checkpoint.CheckpointSave
    assert grain.python.PyGrainCheckpointRestore is grain.checkpoint.CheckpointRestore


# The examples of the documentation, with only the import changed


def test_documented_example_of_checkpoint_save() -> None:
    # Setup Data
    model_weights = {"layer1": 1.0, "layer2": 2.0}
    ds = grain.MapDataset.range(100)
    iterator = iter(ds)
    for _ in range(10):
        next(iterator)

    # Setup Orbax CheckpointManager
    with tempfile.TemporaryDirectory() as temp_dir:
        path = epath.Path(temp_dir) / "orbax_grain_checkpoint"
        path.mkdir(parents=True, exist_ok=True)

        with ocp.CheckpointManager(path) as mngr:
            mngr.save(
                step=0,
                args=ocp.args.Composite(
                    model=ocp.args.StandardSave(model_weights),
                    data_iter=grain.checkpoint.CheckpointSave(item=iterator),
                ),
            )
        assert (path / "0" / "data_iter" / "process_0-of-1.json").exists()


def test_documented_example_of_checkpoint_restore() -> None:
    # First, save a checkpoint to restore from.
    model_weights = {"layer1": 1.0, "layer2": 2.0}
    ds = grain.MapDataset.range(100)
    save_iterator = iter(ds)
    for _ in range(10):
        next(save_iterator)

    with tempfile.TemporaryDirectory() as temp_dir:
        path = epath.Path(temp_dir) / "orbax_grain_checkpoint"
        path.mkdir(parents=True, exist_ok=True)

        with ocp.CheckpointManager(path) as mngr:
            mngr.save(
                step=0,
                args=ocp.args.Composite(
                    model=ocp.args.StandardSave(model_weights),
                    data_iter=grain.checkpoint.CheckpointSave(item=save_iterator),
                ),
            )

        # Now, restore into fresh iterator and weights using a new manager
        # instance.
        restore_iterator = iter(ds)
        with ocp.CheckpointManager(path) as mngr:
            restored_data = mngr.restore(
                step=0,
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore(),
                    data_iter=grain.checkpoint.CheckpointRestore(item=restore_iterator),
                ),
            )
        # Model weights are returned, iterator is restored in-place.
        assert restored_data["model"] == {"layer1": 1.0, "layer2": 2.0}
        assert next(restore_iterator) == 10
