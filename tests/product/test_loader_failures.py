"""Errors of the loader's stream, workers that die, and threads that close."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors
from tests.product.pieces import Odd, plain, plain_list, shuffled
from tests.waiting import until

Batch = grain.transforms.Batch
IndexSampler = grain.samplers.IndexSampler
ShardOptions = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


class Stopped(BaseException):
    """Of the user's own, and no Exception."""


class Fails(grain.transforms.Map):
    def __init__(
        self, at: int, repaired: Path | None = None, kind: type[BaseException] = KeyError
    ) -> None:
        self.at, self.repaired, self.kind = at, repaired, kind

    def map(self, element: Any) -> Any:
        if element == self.at and (self.repaired is None or not self.repaired.exists()):
            raise self.kind("broken", int(element))
        return element


@pytest.mark.parametrize(
    ("kind", "workers"),
    # In the trainer's process a SystemExit may be a signal's, and gets out at once.
    [(KeyError, 0), (KeyError, 2), (Stopped, 0), (Stopped, 2), (SystemExit, 2)],
)
@pytest.mark.parametrize("operations", [[], [Batch(2)], [Odd(), Batch(2)]])
def test_an_error_comes_in_its_turn_and_is_tried_again(
    kind: type[BaseException], workers: int, operations: list[Any], tmp_path: Path
) -> None:
    sampler = IndexSampler(20, num_epochs=1)
    expected = plain_list(shuffled(*operations, sampler=sampler))
    before = next(i for i, x in enumerate(expected) if 11 in np.atleast_1d(x))
    failing = [Fails(11, tmp_path / "repaired", kind), *operations]
    with shuffled(*failing, sampler=sampler, worker_count=workers) as loader:
        iterator = iter(loader)
        assert [plain(next(iterator)) for _ in range(before)] == expected[:before]
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(kind) as caught:
                next(iterator)
            assert "step 1: map(Fails), at position 11 (record key 11)" in caught.value.__notes__[0]
            assert iterator.get_state() == state
        (tmp_path / "repaired").touch()
        assert plain_list(iterator) == expected[before:]


class Marks(Fails):
    """Leaves a file where it fails."""

    mark = ""

    def map(self, element: Any) -> Any:
        try:
            return super().map(element)
        except Stopped:
            Path(self.mark).touch()
            raise


def test_what_is_no_exception_waits_for_its_turn_too(tmp_path: Path) -> None:
    marks = Marks(9, kind=Stopped)
    marks.mark = str(tmp_path / "raised")
    loader = grain.DataLoader(
        data_source=range(24),
        sampler=IndexSampler(24, num_epochs=1),
        operations=[marks, Odd(), Batch(2)],
        worker_count=2,
    )
    with loader:
        iterator = iter(loader)
        seen = [next(iterator).tolist()]
        assert until(lambda: Path(marks.mark).exists())
        time.sleep(0.1)  # what was raised is here when the next is asked for
        seen.append(next(iterator).tolist())
        with pytest.raises(Stopped):
            next(iterator)
    assert seen == [[1, 3], [5, 7]]


@pytest.mark.parametrize("behind", [False, True], ids=["bare", "device stage"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_traceback_shows_the_users_lines(workers: int, behind: bool) -> None:
    with shuffled(Fails(0), Batch(20), worker_count=workers) as loader:
        iterator: Any = grain.prefetch_to_device(loader) if behind else iter(loader)
        with iterator, pytest.raises(KeyError) as caught:
            next(iterator)
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame for frame in frames if "/grain_jax/_" in frame.filename]
    assert frames[0].filename == __file__
    assert len(ours) <= 2
    if not workers:
        assert frames[-1].name == "map"
    else:
        assert "in map" in "".join(caught.value.__notes__)


class Unloadable(grain.transforms.Map):
    def __init__(self) -> None:
        self.made_in = os.getpid()

    def __setstate__(self, state: Any) -> None:
        if state["made_in"] != os.getpid():
            raise KeyError("not here")
        self.__dict__.update(state)

    def map(self, element: Any) -> Any:
        return element


def test_an_error_as_workers_load_the_pipeline_shows_the_users_lines() -> None:
    with shuffled(Unloadable(), Batch(20), worker_count=1) as loader:
        iterator = iter(loader)
        with pytest.raises(KeyError, match="not here") as caught:
            next(iterator)
    assert "in __setstate__" in "".join(caught.value.__notes__)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert len([frame for frame in frames if "/grain_jax/_" in frame.filename]) <= 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_of_the_library_keeps_its_frames(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grain_jax._execution.pipeline import Pipeline

    def broken(*_: Any) -> Any:
        return {}["no such key"]

    with shuffled(Batch(2), worker_count=workers) as loader:
        iterator = iter(loader)
        monkeypatch.setattr(Pipeline, "_pull", broken)
        with pytest.raises(KeyError) as caught:
            next(iterator)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-3:] == ["next", "next_row", "broken"]


def test_an_error_of_a_source_names_the_record() -> None:
    class Source:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            if index == 7:
                raise OSError("disk")
            return index

    with shuffled(
        source=Source(), sampler=IndexSampler(20, num_epochs=1), worker_count=1
    ) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(7)] == list(range(7))
        for _ in range(2):
            with pytest.raises(OSError, match="disk") as caught:
                next(iterator)
            assert "position 7 (record key 7)" in "".join(caught.value.__notes__)


def test_stop_iteration_of_the_user_does_not_end_the_loop() -> None:
    class Stops(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(shuffled(Stops()))


def test_outputs_that_cannot_be_read_do_not_move_the_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from grain_jax._execution.runs import Held

    iterator = iter(shuffled(Batch(2)))
    expected = plain_list(shuffled(Batch(2)))
    next(iterator)
    with monkeypatch.context() as patch:
        patch.setattr(Held, "__getitem__", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(iterator)
    assert plain_list(iterator) == expected[1:]


# Workers and threads.


class Dies(grain.transforms.Map):
    """Its worker kills itself at a record, once or always."""

    def __init__(self, at: int, marker: Path | None) -> None:
        self.at, self.marker = at, marker

    def map(self, element: Any) -> Any:
        if element == self.at and (self.marker is None or not self.marker.exists()):
            if self.marker is not None:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return element


def test_a_worker_that_dies_once_loses_nothing(tmp_path: Path) -> None:
    sampler = IndexSampler(20, num_epochs=1)
    with shuffled(Dies(9, tmp_path / "dead"), sampler=sampler, worker_count=2) as loader:
        assert list(loader) == list(range(20))


def test_a_worker_that_always_dies_is_an_error() -> None:
    sampler = IndexSampler(20, num_epochs=1)
    with shuffled(Dies(9, None), sampler=sampler, worker_count=1, max_worker_restarts=1) as loader:
        iterator = iter(loader)
        with pytest.raises(errors.WorkerError, match=r"SIGKILL.*out of memory\?") as caught:
            list(iterator)
        assert "position" in str(caught.value)


def test_another_thread_iterates_and_a_third_closes() -> None:
    class Slow(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            import time

            time.sleep(0.01)
            return element

    loader = shuffled(Slow(), sampler=IndexSampler(20), worker_count=1)
    iterator = iter(loader)
    begun, found, caught = threading.Event(), [], []

    def iterate() -> None:
        try:
            for element in iterator:
                found.append(element)
                begun.set()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=iterate)
    thread.start()
    assert begun.wait(30)
    closer = threading.Thread(target=loader.close)
    closer.start()
    for each in (closer, thread):
        each.join(30)
        assert not each.is_alive()
    assert found[0] == 0
    assert [type(error) for error in caught] == [errors.ClosedError]
    assert "iterator is closed" in str(caught[0])
