"""Sources as users write them: wrappers, mixins, folders that change, descriptors, odd flags."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._values.errors import InvalidValueError
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]


class Plain:
    """Four records, which it can also give in one call."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.int64(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [np.int64(index) for index in indices]

    def __getbatch__(self, indices: Any) -> Any:
        return np.asarray(indices)


class Delegating:
    """Changes what one record is; all else is the other's."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def __len__(self) -> int:
        return len(self.other)

    def __getitem__(self, index: int) -> Any:
        return self.other[index] * 2

    def __getattr__(self, name: str) -> Any:
        if name == "other":
            raise AttributeError(name)
        return getattr(self.other, name)


class Overriding(Plain):
    """Changes what one record is."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) * 2


class Doubling:
    """Changes what one record of the next class is."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) * 2  # type: ignore[misc]


class Mixed(Doubling, Plain):
    """The mixin stands before."""


class Shared(grain.sources.SharedMemoryDataSource):
    """Changes what one record of a source of the library is."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) * 2


SOURCES = {
    "delegating": lambda: Delegating(Plain()),
    "delegating to a subclass": lambda: Delegating(Mixed()),
    "overriding": Overriding,
    "mixin": Mixed,
    "of the library": lambda: Shared([0, 1, 2, 3]),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_records_are_what_indexing_gives(make: Any, workers: int) -> None:
    source = make()
    expected = [source[index] for index in range(len(source))]
    assert [int(one) for one in expected] in ([0, 2, 4, 6], [0, 4, 8, 12])
    options = grain.MultiprocessingOptions(num_workers=workers)
    dataset = grain.MapDataset.source(source)
    assert [dataset[index] for index in range(4)] == expected
    assert list(dataset.to_iter_dataset().mp_prefetch(options)) == expected
    with grain.load(source, num_epochs=1, worker_count=workers) as loader:
        assert list(loader) == expected
    # The end of `with` closes what it was given.
    with grain.load(make(), num_epochs=1, batch_size=4, worker_count=workers) as loader:
        assert [batch.tolist() for batch in loader] == [expected]


def test_a_wrapper_of_a_hugging_face_dataset_is_read_by_its_own_getitem() -> None:
    datasets = pytest.importorskip("datasets")

    class Wrapper(Delegating):
        def __getitem__(self, index: int) -> Any:
            return {"x": self.other[index]["x"] * 100}

    source = Wrapper(datasets.Dataset.from_dict({"x": [1, 2, 3]}))
    expected = [{"x": 100}, {"x": 200}, {"x": 300}]
    for workers in (0, 2):
        with grain.load(source, num_epochs=1, worker_count=workers) as loader:
            assert list(loader) == expected


FOLDER = """
import functools, os, sys, tempfile
import grain_jax as grain

class Folder:
    def __init__(self, path): self.path = path
    @functools.cached_property
    def files(self): return sorted(os.listdir(self.path))
    def __getstate__(self): return {"path": self.path}
    def __len__(self): return len(self.files)
    def __getitem__(self, i):
        with open(os.path.join(self.path, self.files[i])) as file: return file.read()

def made():
    path = tempfile.mkdtemp()
    for i in range(5):
        with open(f"{path}/{i}.txt", "w") as file: file.write(f"text {i}")
    return path, Folder(path)

def stream(kind, source, workers):
    if kind == "load": return grain.load(source, num_epochs=1, worker_count=workers)
    options = grain.MultiprocessingOptions(num_workers=workers)
    return grain.MapDataset.source(source).to_iter_dataset().mp_prefetch(options)

def tried(stream):
    out = []
    try:
        for one in stream: out.append(one)
    except Exception as error: out.append(f"{type(error).__name__}: {error}")
    return out
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_source_that_is_shorter_in_a_worker_is_an_error(tmp_path: Path, mode: str) -> None:
    body = """
    for kind in ("dataset", "load"):
        for workers in (1, 2):
            path, source = made()
            given = stream(kind, source, workers)
            os.remove(path + "/1.txt"); os.remove(path + "/4.txt")
            print(tried(given))
    """
    lines = scripts.output(tmp_path, FOLDER + _dedented(body), GRAIN_JAX_ENGINE_MODE=mode)
    assert len(lines) == 4
    for line in lines:
        assert line.startswith(
            "['InvalidValueError: the data source (Folder) has 3 records in this process, and had "
            "5 where the pipeline was made"
        )


def test_a_source_that_has_grown_is_read_as_far_as_it_went_with_a_warning(tmp_path: Path) -> None:
    body = """
    for workers in (0, 2):
        path, source = made()
        given = stream("dataset", source, workers)
        with open(path + "/9.txt", "w") as file: file.write("more")
        print(tried(given))
    """
    done = scripts.run(tmp_path, FOLDER + _dedented(body))
    assert done.stdout.splitlines() == [str([f"text {i}" for i in range(5)])] * 2
    assert "has 6 records in a worker process, and had 5" in done.stderr
    assert "the same records only if the others were added behind them" in done.stderr


def test_a_length_that_is_lowered_between_epochs_makes_no_key_wrap_around() -> None:
    source = Countdown()
    for workers, error, text in (
        (0, IndexError, "range object index out of range"),
        (2, InvalidValueError, "has 3 records in this process, and had 5"),
    ):
        source.n = 5
        options = grain.MultiprocessingOptions(num_workers=workers)
        dataset = grain.MapDataset.source(source).to_iter_dataset().mp_prefetch(options)
        assert list(dataset) == [0, 1, 2, 3, 4]
        source.n = 3
        found: list[int] = []
        with pytest.raises(error, match=text):
            found.extend(dataset)
        assert found == [0, 1, 2][: len(found)]


class Countdown:
    """Has as many records as somebody says."""

    n = 5

    def __init__(self) -> None:
        self.n = 5

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return range(self.n)[index]


STRICT = """
import grain_jax as grain

KEYS = {b"ab": 1}
NAMES = {"ab": 2}
TEXTS = [b"cd", "cd"]

class Source:
    def __len__(self): return 6
    def __getitem__(self, i): return {"x": i, "t": b"ab", "u": "ab"}

def change(record):
    known = len({b"ab", b"xy"}) * len({"ab"})
    return record["x"] + KEYS[record["t"]] + NAMES[record["u"]] + known + len(TEXTS)

for source in (Source(), [{"x": i, "t": b"ab", "u": "ab"} for i in range(6)]):
    for workers in (0, 2):
        options = grain.MultiprocessingOptions(num_workers=workers)
        dataset = grain.MapDataset.source(source).map(change).to_iter_dataset()
        print([b.tolist() for b in dataset.filter(bool).batch(3).mp_prefetch(options)], flush=True)
"""


@pytest.mark.parametrize("mode", MODES)
def test_bytes_are_never_compared_with_text(tmp_path: Path, mode: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(STRICT)
    done = subprocess.run(
        [sys.executable, "-bb", "-W", "error", str(script)],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(scripts.ROOT),
            "PATH": "/usr/bin:/bin",
            "JAX_PLATFORMS": "cpu",
            "HOME": str(tmp_path),
            "GRAIN_JAX_ENGINE_MODE": mode,
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[[7, 8, 9], [10, 11, 12]]"] * 4


def _dedented(body: str) -> str:
    return "\n".join(line[4:] for line in body.splitlines()) + "\n"
