"""Reading ahead in the trainer's process, where the user asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import grain_jax as grain
from tests.waiting import until


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert until(lambda: set(threading.enumerate()) <= before)


class Counting:
    """A source of 1,000 records that notes which keys were read."""

    def __init__(self, bad: int = -1) -> None:
        self.read: list[int] = []
        self.bad = bad

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, key: int) -> int:
        if key == self.bad:
            raise OSError(f"cannot read {key}")
        self.read.append(key)
        return key


def _loader(source: Any, **reading: int) -> grain.DataLoader:
    return grain.load(source, num_epochs=1, batch_size=8, read_options=grain.ReadOptions(**reading))


def _settled(source: Counting, expected: int) -> int:
    """How many records are read in the end, which should be so many."""
    until(lambda: len(source.read) >= expected)
    time.sleep(0.1)  # in which no more are
    return len(source.read)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ({}, 8),
        ({"num_threads": 0, "prefetch_buffer_size": 80}, 8),
        ({"num_threads": 4}, 8 + 16),
        ({"num_threads": 4, "prefetch_buffer_size": 80}, 8 + 80),
        ({"num_threads": 4, "prefetch_buffer_size": 0}, 8),
    ],
)
def test_reads_as_far_ahead_as_asked(reading: dict[str, int], expected: int) -> None:
    source = Counting()
    with _loader(source, **reading) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == list(range(8))
        assert _settled(source, expected) == expected


def test_reading_ahead_changes_nothing() -> None:
    with _loader(Counting(), num_threads=3, prefetch_buffer_size=50) as loader:
        assert [x for batch in loader for x in batch.tolist()] == list(range(1000))
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = iterator.get_state()
        restored = iter(_loader(Counting()))
        restored.set_state(state)
        assert next(restored).tolist() == list(range(40, 48))


def test_a_failed_read_is_raised_in_its_turn_and_tried_again() -> None:
    source = Counting(bad=17)
    with _loader(source, num_threads=2, prefetch_buffer_size=64) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist()[0] for _ in range(2)] == [0, 8]
        for _ in range(2):
            with pytest.raises(OSError, match="cannot read 17"):
                next(iterator)
        source.bad = -1
        assert next(iterator).tolist() == list(range(16, 24))


def test_close_does_not_wait_for_a_blocked_read() -> None:
    released = threading.Event()

    class Blocked(Counting):
        def __getitem__(self, key: int) -> int:
            if key >= 8:
                released.wait()
            return key

    loader = _loader(Blocked(), num_threads=2, prefetch_buffer_size=16)
    iterator = iter(loader)
    next(iterator)
    loader.close()  # the test's timeout is what it would wait for
    released.set()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_no_program_catches_is_the_records_too(
    kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    class Source(Counting):
        def __getitem__(self, key: int) -> int:
            if key == 20:
                raise kind("of the source")
            return key

    with _loader(Source(), num_threads=4) as loader:
        iterator = iter(loader)
        seen = [next(iterator).tolist(), next(iterator).tolist()]
        assert seen == [list(range(8)), list(range(8, 16))]
        for _ in range(2):
            with pytest.raises(kind, match="of the source") as caught:
                next(iterator)
            assert "position 20 (record key 20)" in "".join(caught.value.__notes__)
    assert capfd.readouterr().err == ""
