"""Running ahead in the caller's own thread: order, bounds, ends and interrupts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from grain_jax._execution import here
from grain_jax._execution.here import RunHere
from grain_jax._values.errors import ClosedError


class Source:
    """Counts, and raises what it is told to, once."""

    def __init__(self, end: int = 50, **errors: BaseException) -> None:
        self.made: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.end = end
        self.errors = {int(name[1:]): error for name, error in errors.items()}

    def __call__(self) -> int:
        self.threads.add(threading.current_thread())
        number = len(self.made)
        if number in self.errors:
            raise self.errors.pop(number)
        if number == self.end:
            raise StopIteration
        self.made.append(number)
        return number


def get(run: RunHere[int]) -> int:
    number, result = run.peek()
    run.take(number)
    return result


def running(produce: Callable[[], int], size: int = 2) -> RunHere[int]:
    run = RunHere(produce, size, "step 1: map(f)")
    run.start()
    return run


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_gives_every_result_in_order_and_then_ends(size: int) -> None:
    source = Source()
    run = running(source, size)
    assert [get(run) for _ in range(50)] == list(range(50))
    for _ in range(3):
        with pytest.raises(StopIteration):
            get(run)
    assert source.threads == {threading.current_thread()}


def test_runs_ahead_by_and_by() -> None:
    source = Source()
    run = running(source, 2)
    counts = []
    for _ in range(5):
        get(run)
        counts.append(len(source.made))
    assert counts == [1, 3, 5, 6, 7]


def test_looking_takes_nothing() -> None:
    source = Source()
    run = running(source, 0)
    assert run.peek() == run.peek() == (0, 0)
    assert source.made == [0]


def test_an_error_comes_in_its_turn_and_ends_the_run() -> None:
    error = ValueError("no")
    run = running(Source(_2=error), 4)
    assert [get(run), get(run)] == [0, 1]
    with pytest.raises(ValueError, match="no") as info:
        get(run)
    assert info.value is error
    assert run.ended
    with pytest.raises(StopIteration):
        get(run)


def test_an_interrupt_comes_at_once_and_ends_the_run() -> None:
    run = running(Source(_2=KeyboardInterrupt()), 4)
    get(run)
    with pytest.raises(KeyboardInterrupt):  # though a result waits
        get(run)
    assert run.ended


def test_stopped_while_another_thread_makes_something() -> None:
    inside, go = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def produce() -> int:
        inside.set()
        go.wait(30)
        return 1

    run = running(produce)

    def take() -> None:
        try:
            get(run)
            get(run)
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    inside.wait(30)
    run.stop()
    assert not run.join(0.01)
    go.set()
    thread.join(30)
    assert run.join()
    assert len(raised) == 1


@pytest.fixture
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "_told", set())


@pytest.mark.usefixtures("nothing_told")
def test_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "grain_jax"):
        for _ in range(3):
            running(Source())
    (record,) = caplog.records
    assert "step 1: map(f) may draw from `random` or `np.random`" in record.getMessage()
    assert "inside next()" in record.getMessage()
