"""The thread that runs ahead: order, bounds, ends, and that it never outlives its taker."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from grain_jax._execution.ahead import RunAhead
from grain_jax._values.errors import ClosedError
from tests.waiting import PATIENCE, until

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert until(lambda: set(threading.enumerate()) <= before)


def running(produce: Callable[[], object], size: int = 2) -> RunAhead[object]:
    run = RunAhead(produce, size)
    run.start()
    return run


def get(run: RunAhead[object]) -> object:
    number, result = run.peek()
    run.take(number)
    return result


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_gives_every_result_in_order_and_then_ends(size: int) -> None:
    run = running(iter(range(50)).__next__, size)
    assert [get(run) for _ in range(50)] == list(range(50))
    for _ in range(3):
        with pytest.raises(StopIteration):
            get(run)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_stays_within_its_bound(size: int) -> None:
    made: list[int] = []

    def produce() -> int:
        made.append(len(made))
        return made[-1]

    run = running(produce, size)
    for taken in range(4):
        assert until(lambda: len(made) == taken + size)  # noqa: B023
        time.sleep(0.02)
        assert len(made) == taken + size
        assert get(run) == taken
    run.stop()


def test_an_exception_comes_in_its_turn_and_ends_the_run() -> None:
    def numbers() -> Iterator[int]:
        yield 0
        yield 1
        raise KeyError("two")

    run = running(numbers().__next__, 5)
    assert [get(run), get(run)] == [0, 1]
    with pytest.raises(KeyError, match="two") as caught:
        get(run)
    assert caught.traceback[-1].name == "numbers"
    assert run.ended
    with pytest.raises(StopIteration):
        get(run)


def test_stop_wakes_everyone_who_waits() -> None:
    gate = threading.Event()
    run = running(lambda: gate.wait(PATIENCE))
    seen: list[BaseException] = []

    def take() -> None:
        try:
            get(run)
        except ClosedError as error:
            seen.append(error)

    takers = [threading.Thread(target=take) for _ in range(3)]
    for taker in takers:
        taker.start()
    run.stop()
    for taker in takers:
        taker.join(PATIENCE)
    assert len(seen) == 3
    assert not run.join(0.01)
    gate.set()
    assert run.join(PATIENCE)


def test_dropping_the_run_ends_its_thread() -> None:
    run = running(lambda: 1)
    thread = run._channel.thread
    assert get(run) == 1
    del run
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_thread_keeps_no_result_alive() -> None:
    class Thing:
        pass

    run = running(Thing, 1)
    thing = weakref.ref(get(run))
    gc.collect()
    assert thing() is None
    run.stop()


def test_an_exception_leaves_no_cycle_behind() -> None:
    class Failure(Exception):
        pass

    def fail() -> None:
        raise Failure

    gc.collect()
    gc.disable()
    try:
        run = running(fail)
        with pytest.raises(Failure):
            get(run)
        run.join(PATIENCE)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Failure)]
    finally:
        gc.enable()


def test_the_thread_has_the_context_of_its_maker() -> None:
    with np.errstate(divide="raise"):
        run = running(lambda: np.ones(1) / np.zeros(1))
    with pytest.raises(FloatingPointError):
        get(run)


def script(text: str) -> None:
    """Runs a script in a fresh interpreter; it has to end well and to say nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = """
import os, warnings
from grain_jax._execution.ahead import RunAhead
from grain_jax._values.errors import ClosedError
run = RunAhead(iter(range(3)).__next__, 2)
run.start()
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of the thread
child = os.fork()
if child == 0:
    try:
        run.peek()[1]
    except ClosedError as error:
        assert f"belongs to process {os.getppid()}" in str(error), error
        raise SystemExit(7)  # runs the handlers at exit, too
    raise SystemExit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert run.peek()[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_forked_copy_raises_rather_than_waits(no_process_left: None) -> None:
    script(FORK)


@pytest.mark.parametrize(
    "produce",
    ["lambda: 1", "threading.Event().wait", "lambda: time.sleep(0.3)"],
    ids=["full", "blocked", "busy"],
)
def test_the_interpreter_exits_in_bounded_time(produce: str) -> None:
    script(
        "import threading, time\nfrom grain_jax._execution.ahead import RunAhead\n"
        f"run = RunAhead({produce}, 2)\nrun.start()\ntime.sleep(0.1)\n"
    )
