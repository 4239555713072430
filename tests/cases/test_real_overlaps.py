"""Arrays that share memory share it in workers, too: what is written to one shows in the other."""

from __future__ import annotations

import array
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")

LARGE = 1 << 19  # numbers, of 8 bytes: more than is sent with each of its parts


class Shared:
    """Writes to one object and reads from another."""

    def __init__(self, make: Callable[[], tuple[Any, Any]]) -> None:
        self.written, self.read = make()

    def __call__(self, x: int) -> float:
        self.written[:] = x if isinstance(self.written, np.ndarray) else bytes([x] * 4)
        return float(np.asarray(self.read).astype(float).sum())


class Turned(Shared):
    """Is pickled with the view first."""

    def __init__(self, make: Callable[[], tuple[Any, Any]]) -> None:
        self.read, self.written = make()[::-1]


def both(make: Callable[[Any], Any], owner: Any) -> tuple[Any, Any]:
    return owner, make(owner)


MAKERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "reshaped": lambda: both(lambda a: a.reshape(2, 2), np.zeros(4, np.uint8)),
    "written through the view": lambda: both(lambda a: a.base, np.zeros(4).reshape(2, 2)),
    "two views": lambda: both(lambda a: a.base[1:], np.zeros(8)[2:4]),
    "every other": lambda: both(lambda a: a[::-2], np.zeros(9)),
    "in the order of Fortran": lambda: both(lambda a: a.T[1], np.zeros((3, 4), order="F")),
    "other bytes": lambda: both(lambda a: a.view(">i4"), np.zeros(4, ">i4")),
    "another type": lambda: both(lambda a: a.view(np.uint8), np.zeros(4, np.float32)),
    "read-only": lambda: both(lambda a: np.broadcast_to(a, (3, 4)), np.zeros(4)),
    "bytearray": lambda: both(lambda a: np.frombuffer(a, np.uint8), bytearray(4)),
    "memoryview": lambda: both(lambda a: memoryview(a)[1:], bytearray(4)),
    "memoryview of an array": lambda: both(memoryview, np.zeros(4)),
    "windows": lambda: both(lambda a: np.lib.stride_tricks.sliding_window_view(a, 3), np.zeros(6)),
    "a row of much": lambda: both(lambda a: a[5], np.zeros((LARGE // 8, 8))),
    "two parts of much": lambda: both(lambda a: a.base[7:30], np.zeros(LARGE)[10:20]),
}


@pytest.mark.parametrize("kind", [Shared, Turned])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_written_to_one_shows_in_the_other(make: Any, kind: Any) -> None:
    plain = kind(make)
    expected = [plain(x) for x in range(1, 5)]
    assert len(set(expected)) == 4
    for workers in (0, 2):
        options = grain.MultiprocessingOptions(num_workers=workers)
        dataset = grain.MapDataset.range(1, 5).map(kind(make)).to_iter_dataset()
        assert list(dataset.mp_prefetch(options)) == expected, workers


class Reader:
    """Reads each record into one buffer, and looks at it through a view."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.view = np.frombuffer(buffer, np.uint8)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        io.BytesIO(bytes([index] * 4)).readinto(self.buffer)
        return int(self.view.sum())


@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_that_reads_into_a_buffer(
    workers: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    for buffer in (bytearray(4), array.array("B", bytes(4)), np.zeros(4, np.uint8)):
        with grain.load(Reader(buffer), num_epochs=1, worker_count=workers) as loader:
            assert list(loader) == [0, 4, 8, 12, 16]


def test_a_small_part_of_much_is_sent_alone() -> None:
    part = np.zeros(LARGE)[3:5]
    seen = Parts(part)
    options = grain.MultiprocessingOptions(num_workers=2)
    dataset = grain.MapDataset.range(1).map(seen).to_iter_dataset()
    assert list(dataset.mp_prefetch(options)) == [16]


class Parts:
    def __init__(self, part: Any) -> None:
        self.part = part

    def __call__(self, x: int) -> int:
        owner = self.part
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        return len(memoryview(owner).cast("B"))
