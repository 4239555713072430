"""However records are read, they are the same; threads come when they pay and end with close()."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grain_jax._algebra.access import failed_row
from grain_jax._algebra.reading import Reader, _threads_for
from grain_jax._algebra.sources import adapt
from grain_jax._values.errors import ClosedError, OutOfRangeError
from grain_jax._values.options import ReadOptions
from tests.waiting import PATIENCE, until

MAIN = threading.get_ident()


def keys(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


class Counting:
    """Remembers which threads read, and waits if it is told to."""

    def __init__(self, n: int = 100, wait: float = 0.0) -> None:
        self.n = n
        self.wait = wait
        self.threads: set[int] = set()
        self.bad: dict[int, BaseException] = {}
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.threads.add(threading.get_ident())
        self.asked.append(index)
        if self.wait:
            time.sleep(self.wait)
        if index in self.bad:
            raise self.bad[index]
        return None if index % 7 == 3 else {"x": index}

    def expected(self, indices: Any) -> list[Any]:
        return [None if i % 7 == 3 else {"x": i} for i in indices]


class Many(Counting):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(len(indices))
        for index in indices:
            if index in self.bad:
                raise self.bad[index]
        return self.expected(indices)


def reading_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("grain_jax read")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert until(lambda: not reading_threads())


def reader(source: Any, num_threads: int | None = None) -> Reader:
    return Reader(adapt(source), ReadOptions(num_threads=num_threads))


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=20), max_size=4),
    st.sampled_from([None, 0, 1, 2, 5, 64]),
    st.sampled_from([Counting, Many]),
    st.sampled_from([0.0, 1e-4]),
)
def test_records_are_the_same_however_they_are_read(
    blocks: list[list[int]], num_threads: int | None, kind: type[Counting], wait: float
) -> None:
    source = kind(wait=wait)
    one = reader(source, num_threads)
    for block in blocks:
        assert one.read(keys(*block)) == source.expected(block)
    one.close()


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_given_number_of_threads_is_obeyed(wanted: int) -> None:
    class Gathering(Counting):
        """Its records wait until as many threads as there should be are reading."""

        is_open = False

        def __getitem__(self, index: int) -> Any:
            self.threads.add(threading.get_ident())
            assert until(lambda: self.is_open or len(self.threads) == wanted)
            self.is_open = True
            return super().__getitem__(index)

    source = Gathering()
    one = reader(source, wanted)
    source.is_open = True
    one.read(keys(0))
    assert source.threads == {MAIN}  # the first use is nobody else's
    source.threads.clear()
    source.is_open = False
    for _ in range(3):
        one.read(np.arange(60))
    assert len(source.threads) == wanted
    assert MAIN not in source.threads
    assert len(reading_threads()) == wanted
    one.close()  # the fixture waits for the threads


def test_what_a_source_makes_at_its_first_use_it_makes_once() -> None:
    class Lazy(Counting):
        made = 0

        def __getitem__(self, index: int) -> Any:
            if not self.made:
                time.sleep(0.01)
                self.made += 1
            return self.made

    one = reader(Lazy(), 8)
    assert one.read(np.arange(40)) == [1] * 40
    one.close()


def test_zero_reads_in_the_calling_thread() -> None:
    source = Counting(wait=0.001)
    one = reader(source, 0)
    one.read(np.arange(20))
    assert source.threads == {MAIN}
    assert not reading_threads()
    one.close()


class Waiting:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        time.sleep(0.005)
        return 3 * index


def test_a_source_that_waits_gets_threads() -> None:
    one = reader(Waiting())
    for _ in range(3):
        assert one.read(np.arange(64)) == [3 * index for index in range(64)]
    assert len(reading_threads()) > 16
    one.close()


def test_a_source_that_changes_what_it_holds_gets_none() -> None:
    source = Counting(wait=0.005)
    one = reader(source)
    for _ in range(3):
        one.read(np.arange(64))
    assert source.threads == {MAIN}
    one.close()


def test_a_source_that_does_not_wait_gets_none() -> None:
    source = Counting(1000)
    one = reader(source)
    for start in range(0, 1000, 50):
        one.read(np.arange(start, start + 50))
    assert source.threads == {MAIN}
    one.close()


def test_the_number_follows_from_what_a_record_costs() -> None:
    assert _threads_for(1e-6, 1e-6) == 0
    assert _threads_for(30e-6, 1e-6) == 0
    assert _threads_for(2e-3, 1.9e-3) == 0
    assert _threads_for(2e-3, 10e-6) == 64
    assert _threads_for(1.0, 1e-6) == 64
    assert _threads_for(200e-6, 30e-6) == 4


def test_containers_and_getitems_need_no_threads() -> None:
    one = reader(list(range(10)), 4)
    assert one.read(keys(3, 1)) == [3, 1]
    source = Many(1000)
    for num_threads in (None, 4):
        source.asked.clear()
        two = reader(source, num_threads)
        for start in range(0, 1000, 50):
            two.read(np.arange(start, start + 50))
        assert source.asked == [50] * 20
    assert not reading_threads()


@pytest.mark.parametrize("num_threads", [None, 0, 1, 8])
@pytest.mark.parametrize("kind", [Counting, Many])
@pytest.mark.parametrize("error", [KeyError("mine"), StopIteration(), SystemExit(3)])
def test_the_first_failing_key_is_named(
    num_threads: int | None, kind: type[Counting], error: BaseException
) -> None:
    source = kind(wait=0.0005)
    one = reader(source, num_threads)
    one.read(np.arange(8))
    source.bad = {40: error, 50: ValueError("later")}
    with pytest.raises(type(error)) as caught:
        one.read(np.arange(90, 20, -1)[::-1])  # 21, 22, ... 90
    assert caught.value is error
    notes = error.__notes__
    if kind is Counting or isinstance(error, Exception):
        assert failed_row(error) == 19
        assert notes == [f"raised by the data source ({kind.__name__} of length 100) for key 40"]
    else:
        assert failed_row(error) is None
        assert notes[0].endswith("for 70 keys from 21 to 90")
    del error.__notes__
    source.bad = {}
    assert one.read(keys(1, 3)) == source.expected([1, 3])
    one.close()


def test_a_key_outside_is_refused_before_reading() -> None:
    for num_threads in (None, 0, 2):
        source = Counting(10)
        one = reader(source, num_threads)
        with pytest.raises(OutOfRangeError, match="key 10 "):
            one.read(keys(1, 10))
        assert source.asked == []
        one.close()


def test_a_closed_reader_is_not_used() -> None:
    one = reader(Counting(), 2)
    one.read(keys(1, 2))
    one.close()
    one.close()
    with pytest.raises(ClosedError):
        one.read(keys(1))


def test_close_does_not_wait_for_a_blocked_source() -> None:
    release = threading.Event()

    class Blocked(Counting):
        def __getitem__(self, index: int) -> Any:
            if index:  # the first one is read in the thread that asks
                release.wait(50)
            return index

    one = reader(Blocked(), 3)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            one.read(np.arange(10))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while len(reading_threads()) < 3:
        time.sleep(0.001)
    one.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert isinstance(errors[0], ClosedError)
    release.set()


def test_a_forgotten_reader_ends_its_threads() -> None:
    one = reader(Counting(), 4)
    one.read(np.arange(10))
    assert len(reading_threads()) == 4
    del one  # the fixture waits for the threads


def test_records_are_not_kept_by_idle_threads() -> None:
    class Thing:
        alive = 0

        def __init__(self) -> None:
            Thing.alive += 1

        def __del__(self) -> None:
            Thing.alive -= 1

    class Things(Counting):
        def __getitem__(self, index: int) -> Any:
            return Thing()

    one = reader(Things(), 4)
    records = one.read(np.arange(20))
    assert Thing.alive == 20
    del records
    assert until(lambda: not (gc.collect(), Thing.alive)[1])
    one.close()


def test_a_pickled_reader_starts_afresh() -> None:
    one = reader(list(range(10)), 2)
    again = pickle.loads(pickle.dumps(one))
    assert again.read(keys(4, 2)) == [4, 2]
    two = reader(range(5))
    two.close()
    assert pickle.loads(pickle.dumps(two)).read(keys(1)) == [1]


SCRIPT = """
import os, sys, threading, time, numpy as np
from grain_jax._algebra.reading import Reader
from grain_jax._algebra.sources import adapt
from grain_jax._values.options import ReadOptions
class Source:
    blocked = False
    def __len__(self): return 100
    def __getitem__(self, i):
        time.sleep(1000 if self.blocked else 0.001)
        return i
source = Source()
reader = Reader(adapt(source), ReadOptions(num_threads=4))
assert reader.read(np.arange(20)) == list(range(20))
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_fork_starts_threads_of_its_own() -> None:
    done = run(
        "import warnings\n"
        "with warnings.catch_warnings():\n"
        "    # Newer Pythons warn of a fork beside threads, which is what this is about.\n"
        "    warnings.simplefilter('ignore', DeprecationWarning)\n"
        "    pid = os.fork()\n"
        "if pid == 0:\n"
        "    assert reader.read(np.arange(30)) == list(range(30))\n"
        "    reader.close()\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "assert reader.read(np.arange(30)) == list(range(30))\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("blocked", [False, True])
def test_the_interpreter_ends_while_threads_are_there(blocked: bool) -> None:
    done = run(
        f"source.blocked = {blocked}\n"
        "threading.Thread(target=lambda: reader.read(np.arange(8)), daemon=True).start()\n"
        "time.sleep(0.1)\n"
    )
    assert done.returncode == 0
    assert "Fatal" not in done.stderr


def test_an_interrupt_reaches_the_reading_thread() -> None:
    done = run(
        "import signal\n"
        "source.blocked = True\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    reader.read(np.arange(8))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
