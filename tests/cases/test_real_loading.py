"""Workers that could not load the pipeline: the next `next` tries again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]
NUMBERS = list(range(12))


class Source:
    """Numbers; a copy of it does what `how` says when it is loaded, as long as a file is there."""

    def __init__(self, file: Path, how: str) -> None:
        self.file, self.how = file, how
        file.touch()

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if self.file.exists():
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                raise SystemExit(7)
            raise OSError("the disk is not there yet")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.array(index)


EXPECTED: dict[str, tuple[type[BaseException], str]] = {
    "raise": (OSError, "not there yet"),
    "exit": (SystemExit, "7"),
    "kill": (errors.WorkerError, "die as they load the pipeline"),
}


def load(source: Any, **settings: Any) -> Any:
    return grain.load(source, num_epochs=1, worker_count=2, **settings)


def stage(loader: Any) -> Any:
    return grain.prefetch_to_device(loader)


@pytest.mark.parametrize("how", EXPECTED)
@pytest.mark.parametrize("mode", MODES)
def test_next_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, how: str
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    kind, text = EXPECTED[how]
    source = Source(tmp_path / "missing", how)
    with load(source) as loader:
        iterator = iter(loader)
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(kind, match=text):
                next(iterator)
            assert iterator.get_state() == state
        source.file.unlink()
        assert [int(element) for element in iterator] == NUMBERS


@pytest.mark.parametrize("make", [iter, stage])
def test_it_does_so_behind_a_stage_and_with_batches(
    tmp_path: Path, make: Callable[[Any], Any]
) -> None:
    source = Source(tmp_path / "missing", "raise")
    with load(source, batch_size=4) as loader:
        batches = make(loader)
        for _ in range(2):
            with pytest.raises(OSError, match="not there yet"):
                next(batches)
        source.file.unlink()
        assert np.concatenate(list(batches)).tolist() == NUMBERS
        batches.close()


def test_it_does_so_from_the_middle(tmp_path: Path) -> None:
    source = Source(tmp_path / "missing", "raise")
    source.file.unlink()
    with load(source, batch_size=2) as loader:
        iterator = iter(loader)
        held = [next(iterator) for _ in range(3)]
        state = iterator.get_state()
        source.file.touch()
        again = iter(loader)
        again.set_state(state)
        with pytest.raises(OSError, match="not there yet"):
            next(again)
        source.file.unlink()
        assert np.concatenate([*held, *again]).tolist() == NUMBERS


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_init_fn_that_fails_is_called_again(tmp_path: Path, mode: str) -> None:
    text = """
    import os
    import grain_jax as grain
    def prepare(number, count):
        if not os.path.exists("ready"):
            raise RuntimeError("not ready")
    with grain.load(
        list(range(12)), num_epochs=1, worker_count=2, worker_init_fn=prepare
    ) as loader:
        iterator = iter(loader)
        for _ in range(2):
            try:
                next(iterator)
            except RuntimeError as error:
                print(error)
        open("ready", "w").close()
        print(list(iterator))
    """
    settings = {"GRAIN_JAX_ENGINE_MODE": mode, "GRAIN_JAX_ENGINE_MEMORY": "file"}
    assert scripts.output(tmp_path, text, **settings) == ["not ready"] * 2 + [str(NUMBERS)]
