from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from orbax.checkpoint.experimental import v1

from grain_jax._values import checkpointable, files
from grain_jax.checkpoint import CheckpointRestore, CheckpointSave
from tests.product.counters import Counter, DictCounter, advanced

pytestmark = pytest.mark.usefixtures("no_process_left")

KINDS = [Counter, DictCounter]


@pytest.mark.parametrize("kind", KINDS)
def test_iterators_need_no_registration(tmp_path: Path, kind: type[Counter]) -> None:
    path = epath.Path(tmp_path) / "step"
    params = {"w": jax.numpy.arange(8.0)}
    v1.save_checkpointables(path, {"pytree": params, "data": advanced(kind(), 9)})
    other = kind()
    loaded = v1.load_checkpointables(path, {"pytree": params, "data": other})
    assert loaded["data"] is other
    assert other.position == 9
    assert other.prefetches == [9]
    np.testing.assert_array_equal(loaded["pytree"]["w"], np.arange(8.0))
    assert (path / "data" / "process_0-of-1.json").exists()


def test_a_checkpointer_over_several_steps(tmp_path: Path) -> None:
    iterator, other = Counter(), Counter()
    with v1.training.Checkpointer(epath.Path(tmp_path)) as checkpointer:
        for step in range(3):
            next(iterator)
            checkpointer.save_checkpointables(step, {"data": iterator})
        checkpointer.load_checkpointables(1, {"data": other})
    assert other.position == 2


def test_an_asynchronous_save_keeps_the_state_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_on = threading.Event()

    def late_write(*args: Any) -> None:
        assert moved_on.wait(60)
        files.write_state(*args)

    monkeypatch.setattr(checkpointable, "write_state", late_write)
    path = epath.Path(tmp_path) / "step"
    iterator = advanced(Counter(), 5)
    response = v1.save_checkpointables_async(path, {"data": iterator})
    advanced(iterator, 20)
    moved_on.set()
    response.result()
    other = Counter()
    v1.load_checkpointables(path, {"data": other})
    assert other.position == 5


def test_a_missing_file_is_a_value_error_that_names_it(tmp_path: Path) -> None:
    path = epath.Path(tmp_path) / "step"
    v1.save_checkpointables(path, {"data": Counter()})
    (path / "data" / "process_0-of-1.json").unlink()
    with pytest.raises(ValueError, match=r"process_0-of-1\.json is missing in .*/step/data"):
        v1.load_checkpointables(path, {"data": Counter()})


def test_both_interfaces_read_what_the_other_wrote(tmp_path: Path) -> None:
    with ocp.CheckpointManager(epath.Path(tmp_path) / "older") as manager:
        manager.save(0, args=ocp.args.Composite(data=CheckpointSave(advanced(Counter(), 4))))
    other = Counter()
    v1.load_checkpointables(epath.Path(tmp_path) / "older" / "0", {"data": other})
    assert other.position == 4

    with v1.training.Checkpointer(epath.Path(tmp_path) / "newer") as checkpointer:
        checkpointer.save_checkpointables(0, {"data": advanced(Counter(), 6)})
    with ocp.CheckpointManager(epath.Path(tmp_path) / "newer") as manager:
        (step,) = manager.all_steps()
        manager.restore(step, args=ocp.args.Composite(data=CheckpointRestore(other)))
    assert other.position == 6
