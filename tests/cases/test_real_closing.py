"""Who closes a source: the loader at its own end; workers close the copies that they have."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]


class Numbers:
    """Numbers in a file, which is open from the first read on; a line in a log for each close."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.closed = folder, None, False
        (folder / "numbers").write_bytes(np.arange(40, dtype="<i8").tobytes())

    def __getstate__(self) -> Any:
        return {**self.__dict__, "file": None}

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if self.closed:
            raise ValueError("read after close")
        if self.file is None:
            self.file = (self.folder / "numbers").open("rb")
        self.file.seek(8 * index)
        return int.from_bytes(self.file.read(8), "little")

    def _close(self) -> None:
        self.closed = True
        if self.file is not None:
            self.file.close()
            with (self.folder / "log").open("a") as log:
                log.write("closed\n")


class Closing(Numbers):
    def close(self) -> None:
        self._close()


class Managed(Numbers):
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


class Both(Closing, Managed):
    pass


def closed(folder: Path) -> int:
    log = folder / "log"
    return log.read_text().count("closed") if log.exists() else 0


@pytest.mark.parametrize("kind", [Closing, Managed, Both])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterators_end_leaves_the_source_open_and_the_loaders_end_closes_it(
    tmp_path: Path, kind: Any, workers: int
) -> None:
    source = kind(tmp_path)
    with grain.load(source, num_epochs=1, batch_size=4, worker_count=workers) as loader:
        for _ in range(3):
            assert [int(b[0]) for b in loader] == list(range(0, 40, 4))
        iterator = iter(loader)
        next(iterator)
        iterator.close()
        assert not source.closed
    assert source.closed
    here = source.file is not None
    assert here == (workers == 0)
    assert closed(tmp_path) - here == (0 if workers == 0 else pytest.approx(6, abs=2))
    loader.close()
    assert closed(tmp_path) - here <= 8  # a second close() does nothing


def test_a_dataset_leaves_the_source_to_its_user(tmp_path: Path) -> None:
    source = Closing(tmp_path)
    dataset = grain.MapDataset.source(source)
    assert list(dataset) == list(range(40))
    options = grain.MultiprocessingOptions(num_workers=1)
    with dataset.to_iter_dataset().mp_prefetch(options).__iter__() as iterator:
        assert next(iterator) == 0
    assert not source.closed
    assert closed(tmp_path) == 1
    source.close()


def test_the_device_stage_leaves_it_to_the_loader(tmp_path: Path) -> None:
    source = Closing(tmp_path)
    with grain.load(source, num_epochs=1, batch_size=4) as loader:
        with grain.prefetch_to_device(loader) as batches:
            next(batches)
        assert not source.closed
        assert len(list(loader)) == 10
    assert source.closed


def test_what_cannot_close_in_time_does_not_hold_up_the_trainer(tmp_path: Path) -> None:
    text = """
    import time
    import grain_jax as grain
    class Slow:
        def __len__(self): return 8
        def __getitem__(self, index): return index
        def close(self):
            if not self.here: time.sleep(1000)
        def __init__(self): self.here = True
        def __getstate__(self): return {"here": False}
    with grain.load(Slow(), num_epochs=1, worker_count=1) as loader:
        print(list(loader))
    """
    assert scripts.output(tmp_path, text) == [str(list(range(8)))]


def test_an_error_of_the_users_close_is_raised_in_the_trainer() -> None:
    class Bad:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

        def close(self) -> None:
            raise OSError("disk on fire")

    loader = grain.load(Bad(), num_epochs=1)
    assert list(loader) == [0, 1, 2]
    with pytest.raises(OSError, match="on fire"):
        loader.close()
    loader.close()


@pytest.mark.parametrize("mode", MODES)
def test_workers_close_in_every_start_mode(tmp_path: Path, mode: str) -> None:
    text = """
    import os
    import grain_jax as grain
    class Source:
        def __len__(self): return 8
        def __getitem__(self, index): return index
        def close(self):
            with open("log", "a") as log:
                log.write(f"{os.getpid() == int(open('trainer').read())}\\n")
    with open("trainer", "w") as file:
        file.write(str(os.getpid()))
    with grain.load(Source(), num_epochs=1, worker_count=2) as loader:
        print(list(loader), list(loader))
    """
    text = textwrap.dedent(text).replace(
        "int(open('trainer').read())", "int(pathlib.Path('trainer').read_text())"
    )
    lines = scripts.output(tmp_path, "import pathlib\n" + text, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == [f"{list(range(8))} {list(range(8))}"]
    # A worker that has not been needed may not have loaded its copy.
    logged = (tmp_path / "log").read_text().split()
    assert 2 <= logged.count("False") <= 4
    assert logged.count("True") == 1
