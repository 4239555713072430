from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from grain_jax._product import checkpoint as module
from grain_jax._values import files
from grain_jax._values.errors import InvalidTypeError, StateError
from grain_jax.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
from tests.product.counters import Counter, DictCounter, advanced

pytestmark = pytest.mark.usefixtures("no_process_left", "no_save_left")

ROOT = Path(__file__).resolve().parents[2]
KINDS = [Counter, DictCounter]


@pytest.fixture
def no_save_left() -> Iterator[None]:
    """Fails a test that leaves a thread of ours writing."""
    yield
    assert [thread.name for thread in threading.enumerate() if "grain_jax" in thread.name] == []


def as_process(patch: pytest.MonkeyPatch, index: int, count: int) -> None:
    patch.setattr(module, "process_position", lambda: (index, count))


def manager(directory: Path, **options: Any) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        epath.Path(directory), options=ocp.CheckpointManagerOptions(**options)
    )


# The handler alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["item", "args", "positional"])
def test_restore_changes_the_given_iterator_and_returns_it(
    tmp_path: Path, kind: type[Counter], form: str
) -> None:
    handler = CheckpointHandler()
    iterator, other = advanced(kind(), 10), kind()
    if form == "item":
        handler.save(tmp_path, item=iterator)
        restored = handler.restore(tmp_path, item=other)
    elif form == "args":
        handler.save(tmp_path, args=CheckpointSave(iterator))
        restored = handler.restore(tmp_path, args=CheckpointRestore(item=other))
    else:
        handler.save(tmp_path, iterator)
        restored = handler.restore(tmp_path, other)
    assert restored is other
    assert other.prefetches == [10]
    assert next(other) == 10
    assert [path.name for path in tmp_path.iterdir()] == ["process_0-of-1.json"]
    handler.close()


def test_a_bytes_state_is_the_content_of_the_file(tmp_path: Path) -> None:
    CheckpointHandler().save(tmp_path, advanced(Counter(), 2))
    assert (tmp_path / "process_0-of-1.json").read_bytes() == advanced(Counter(), 2).get_state()


def test_a_dict_state_is_json_in_the_file(tmp_path: Path) -> None:
    CheckpointHandler().save(tmp_path, advanced(DictCounter(), 2))
    content = json.loads((tmp_path / "process_0-of-1.json").read_text())
    assert content == {"position": 2, "elastic": True}


def test_an_iterator_that_cannot_run_ahead_is_restored_too(tmp_path: Path) -> None:
    class Plain:
        position = 4

        def get_state(self) -> int:
            return self.position

        def set_state(self, state: int) -> None:
            self.position = state

    CheckpointHandler().save(tmp_path, Plain())
    other = Plain()
    other.position = 0
    CheckpointHandler().restore(tmp_path, other)
    assert other.position == 4


@pytest.mark.parametrize("verb", ["save", "restore"])
def test_the_iterator_is_given_once(tmp_path: Path, verb: str) -> None:
    call = getattr(CheckpointHandler(), verb)
    args = CheckpointSave(Counter()) if verb == "save" else CheckpointRestore(Counter())
    with pytest.raises(InvalidTypeError, match=f"{verb} takes the iterator.*neither was given"):
        call(tmp_path)
    with pytest.raises(InvalidTypeError, match=f"{verb} takes the iterator.*both were given"):
        call(tmp_path, item=Counter(), args=args)


def test_a_missing_file_is_a_value_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"process_0-of-1\.json is missing"):
        CheckpointHandler().restore(tmp_path, Counter())


def test_a_file_cut_short_leaves_the_iterator_where_it_was(tmp_path: Path) -> None:
    CheckpointHandler().save(tmp_path, advanced(Counter(), 7))
    path = tmp_path / "process_0-of-1.json"
    path.write_bytes(path.read_bytes()[:-4])
    iterator = advanced(Counter(), 2)
    with pytest.raises(StateError, match="cut short"):
        CheckpointHandler().restore(tmp_path, iterator)
    assert iterator.position == 2
    assert iterator.prefetches == []


def test_the_name_in_checkpoints_is_the_public_one() -> None:
    assert CheckpointHandler.typestr() == "grain_jax.checkpoint.CheckpointHandler"


# Several processes


def save_as(
    patch: pytest.MonkeyPatch, directory: Path, iterators: list[Counter], count: int | None = None
) -> None:
    for index, iterator in enumerate(iterators):
        as_process(patch, index, count or len(iterators))
        CheckpointHandler().save(directory, iterator)


def test_each_process_restores_its_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_as(monkeypatch, tmp_path, [advanced(Counter(elastic=False), n) for n in (3, 4)])
    for index, position in enumerate((3, 4)):
        as_process(monkeypatch, index, 2)
        assert CheckpointHandler().restore(tmp_path, Counter(elastic=False)).position == position


@pytest.mark.parametrize("count", [1, 3])
def test_another_count_is_refused_or_elastic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    fixed, free = tmp_path / "fixed", tmp_path / "free"
    fixed.mkdir()
    free.mkdir()
    save_as(monkeypatch, fixed, [advanced(Counter(elastic=False), 3) for _ in range(2)])
    save_as(monkeypatch, free, [advanced(Counter(), 3) for _ in range(2)])
    for index in range(count):
        as_process(monkeypatch, index, count)
        assert CheckpointHandler().restore(free, Counter()).position == 3
        with pytest.raises(StateError, match=rf"by 2 processes.* and {count} process"):
            CheckpointHandler().restore(fixed, Counter(elastic=False))


# With a CheckpointManager


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_parameters_and_data_share_a_step(
    tmp_path: Path, kind: type[Counter], asynchronous: bool
) -> None:
    params = {"w": jax.numpy.arange(8.0), "b": np.full(2, 3)}
    iterator = kind()
    with manager(tmp_path, enable_async_checkpointing=asynchronous) as saver:
        for step in range(3):
            next(iterator)
            saver.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(params), data=CheckpointSave(iterator)
                ),
            )
    assert (tmp_path / "2" / "data" / "process_0-of-1.json").exists()

    other = kind()
    with manager(tmp_path) as loader:
        for step in range(3):
            restored = loader.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(params), data=CheckpointRestore(other)
                ),
            )
            assert restored["data"] is other
            assert other.position == step + 1
            assert other.prefetches[-1] == step + 1
        np.testing.assert_array_equal(restored["params"]["w"], np.arange(8.0))
        assert loader.item_metadata(2)["data"] is None


def test_the_older_item_names(tmp_path: Path) -> None:
    with ocp.CheckpointManager(epath.Path(tmp_path), item_names=("params", "data")) as saver:
        saver.save(
            0,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave({"w": 1.5}),
                data=CheckpointSave(advanced(Counter(), 6)),
            ),
        )
        other = Counter()
        restored = saver.restore(
            0,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(), data=CheckpointRestore(other)
            ),
        )
    assert restored["params"] == {"w": 1.5}
    assert other.position == 6


def test_a_registry_with_the_handler(tmp_path: Path) -> None:
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handler = CheckpointHandler()
    registry.add("data", CheckpointSave, handler)
    registry.add("data", CheckpointRestore, handler)
    other = Counter()
    with ocp.CheckpointManager(epath.Path(tmp_path), handler_registry=registry) as saver:
        saver.save(0, args=ocp.args.Composite(data=CheckpointSave(advanced(Counter(), 6))))
        saver.restore(0, args=ocp.args.Composite(data=CheckpointRestore(other)))
    assert other.position == 6


def test_one_unnamed_item(tmp_path: Path) -> None:
    other = Counter()
    with ocp.CheckpointManager(epath.Path(tmp_path)) as saver:
        saver.save(0, args=CheckpointSave(advanced(Counter(), 6)))
        assert saver.restore(0, args=CheckpointRestore(other)) is other
    assert other.position == 6


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_older_interface_with_items(tmp_path: Path, asynchronous: bool) -> None:
    wrap = ocp.AsyncCheckpointer if asynchronous else ocp.Checkpointer
    iterator, other = advanced(Counter(), 6), Counter()
    checkpointers = {
        "params": wrap(ocp.PyTreeCheckpointHandler()),
        "data": wrap(CheckpointHandler()),
    }
    with ocp.CheckpointManager(epath.Path(tmp_path), checkpointers) as saver:
        saver.save(0, {"params": {"w": 1.5}, "data": iterator})
        advanced(iterator, 3)
        saver.wait_until_finished()
        restored = saver.restore(0, items={"params": None, "data": other})
    assert restored["params"] == {"w": 1.5}
    assert restored["data"] is other
    assert other.position == 6


@pytest.mark.parametrize("wrap", [ocp.Checkpointer, ocp.AsyncCheckpointer])
@pytest.mark.parametrize("form", ["positional", "item", "args"])
def test_a_checkpointer_of_its_own(tmp_path: Path, wrap: Any, form: str) -> None:
    path = epath.Path(tmp_path) / "data"
    iterator, other = advanced(Counter(), 6), Counter()
    with wrap(CheckpointHandler()) as checkpointer:
        if form == "positional":
            checkpointer.save(path, iterator)
        elif form == "item":
            checkpointer.save(path, item=iterator)
        else:
            checkpointer.save(path, args=CheckpointSave(iterator))
        advanced(iterator, 3)
        if wrap is ocp.AsyncCheckpointer:
            checkpointer.wait_until_finished()
        if form == "positional":
            checkpointer.restore(path, other)
        elif form == "item":
            checkpointer.restore(path, item=other)
        else:
            checkpointer.restore(path, args=CheckpointRestore(other))
    assert other.position == 6


def test_an_error_in_restore_comes_through_the_manager(tmp_path: Path) -> None:
    with manager(tmp_path) as saver:
        saver.save(0, args=ocp.args.Composite(data=CheckpointSave(Counter())))
        saver.wait_until_finished()
        (tmp_path / "0" / "data" / "process_0-of-1.json").unlink()
        with pytest.raises(ValueError, match=r"process_0-of-1\.json is missing in .*/0/data"):
            saver.restore(0, args=ocp.args.Composite(data=CheckpointRestore(Counter())))


@pytest.mark.parametrize("arguments", [CheckpointSave, CheckpointRestore])
@pytest.mark.parametrize("value", [None, [1, 2, 3]])
def test_what_is_no_iterator_is_refused_before_orbax_begins(arguments: Any, value: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"has no get_state\(\).*iter\(loader\)"):
        arguments(value)


# Asynchronous saves


def test_an_asynchronous_save_keeps_the_state_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_on, writers = threading.Event(), []

    def late_write(*args: Any) -> None:
        assert moved_on.wait(60)
        writers.append(threading.current_thread())
        files.write_state(*args)

    monkeypatch.setattr(module, "write_state", late_write)
    iterator = advanced(Counter(), 5)
    with manager(tmp_path, enable_async_checkpointing=True) as saver:
        saver.save(0, args=ocp.args.Composite(data=CheckpointSave(iterator)))
        # `save` came back although nothing is written yet, and training goes on.
        advanced(iterator, 20)
        moved_on.set()
        saver.wait_until_finished()
        other = Counter()
        saver.restore(0, args=ocp.args.Composite(data=CheckpointRestore(other)))
    assert other.position == 5
    assert iterator.position == 25
    assert writers != [threading.main_thread()]


def test_an_asynchronous_save_that_fails_says_so_and_leaves_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_state", full)
    with manager(tmp_path, enable_async_checkpointing=True) as saver:
        saver.save(0, args=ocp.args.Composite(data=CheckpointSave(Counter())))
        with pytest.raises(OSError, match="No space left on device"):
            saver.wait_until_finished()
    with manager(tmp_path) as fresh:
        assert fresh.latest_step() is None


# Registration

LAZY = """
import sys
from etils import epath
import grain_jax
assert "orbax.checkpoint" not in sys.modules and "jax" not in sys.modules
import orbax.checkpoint as ocp

class Counter:
    position = 0
    def get_state(self): return {{"position": self.position}}
    def set_state(self, state): self.position = state["position"]

iterator, other = Counter(), Counter()
iterator.position = 3
with ocp.CheckpointManager(epath.Path(sys.argv[1]){options}) as manager:
    assert "grain_jax._product.checkpoint" not in sys.modules
    {middle}
    manager.save(0, args=ocp.args.Composite(data=checkpoint.CheckpointSave(iterator)))
    manager.restore(0, args=ocp.args.Composite(data=checkpoint.CheckpointRestore(other)))
assert other.position == 3
"""


@pytest.mark.parametrize("options", ["", ', item_names=("data",)'])
def test_a_manager_may_be_made_before_the_first_use(tmp_path: Path, options: str) -> None:
    script = LAZY.format(options=options, middle="from grain_jax import checkpoint")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, tmp_path],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


# Checkpoints of Grain


def test_a_checkpoint_written_by_grain_hands_over_its_state(
    tmp_path: Path, reference_grain: Any
) -> None:
    dataset = iter(reference_grain.MapDataset.range(20).to_iter_dataset())
    loader = iter(reference_grain.load(range(20), num_epochs=1))
    for _ in range(3):
        next(dataset)
        next(loader)
    save = reference_grain.checkpoint.CheckpointSave
    with manager(tmp_path) as saver:
        saver.save(0, args=ocp.args.Composite(dataset=save(dataset), loader=save(loader)))

    class Holder:
        def __init__(self, state: Any) -> None:
            self.state = state

        def get_state(self) -> Any:
            return self.state

        def set_state(self, state: Any) -> None:
            self.state = state

    of_dataset, of_loader = Holder({}), Holder(b"{}")
    with manager(tmp_path) as restorer:
        restorer.restore(
            0,
            args=ocp.args.Composite(
                dataset=CheckpointRestore(of_dataset), loader=CheckpointRestore(of_loader)
            ),
        )
    assert of_dataset.state == dataset.get_state()
    assert of_loader.state == loader.get_state()
