"""Forks: what parent and child hold is each one's own, and no lock stays shut."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = [
    pytest.mark.usefixtures("no_process_left"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks of a loaded process"),
]

ENGINES = [
    {"GRAIN_JAX_ENGINE_MODE": "fork_imported"},
    {"GRAIN_JAX_ENGINE_MODE": "fork_first"},
    {"GRAIN_JAX_ENGINE_MODE": "fresh"},
    {"GRAIN_JAX_ENGINE_MEMORY": "file"},
]

# A loader of batches in which all numbers of a row are its record's, and ways to talk to a child.
HEAD = """
import multiprocessing, os, sys
import numpy as np
import grain_jax as grain

class Wide(grain.transforms.Map):
    def map(self, element):
        return {"x": np.full(3000, element)}

class Keep(grain.transforms.Filter):
    def filter(self, element):
        return element % 2 == 0

def loader(workers, *operations, count=4000):
    return grain.DataLoader(
        data_source=range(count), sampler=grain.samplers.SequentialSampler(count),
        operations=[*operations, Wide(), grain.transforms.Batch(4)], worker_count=workers)

def rows(batch):
    assert (batch["x"] == batch["x"][:, :1]).all(), batch
    return batch["x"][:, 0].tolist()

def child(run):
    \"\"\"Forks; `say()` in the parent goes on in the child after its `hear()`.\"\"\"
    (a, b), (c, d) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        os.close(a), os.close(d)
        def end():
            os.write(b, b"1")
            answer = os.read(c, 100).decode()
            assert os.waitpid(pid, 0)[1] == 0
            os.close(b), os.close(c)
            return answer
        return end
    try:
        os.write(d, str(run(lambda: os.read(a, 1))).encode())
        os._exit(0)
    finally:
        os._exit(1)
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("filtered", [False, True])
def test_a_child_keeps_what_it_held(tmp_path: Path, engine: dict[str, str], filtered: bool) -> None:
    text = f"""
    iterator = iter(loader(2, *[Keep()] * {filtered:d}))
    expected = [rows(batch) for batch in loader(0, *[Keep()] * {filtered:d})]
    batches = [next(iterator) for _ in range(3)]

    def run(hear):
        hear()
        before = [rows(batch) for batch in batches]
        for batch in batches:
            batch["x"][...] = -7
        return before

    ends = [child(run), child(run)]
    del batches
    got = [rows(next(iterator)) for _ in range(150)]
    assert [end() for end in ends] == [str(expected[:3])] * 2
    assert got + [rows(batch) for batch in iterator] == expected[3:]
    print("right")
    """
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(text), **engine) == ["right"]


def test_what_either_writes_the_other_does_not_see(tmp_path: Path) -> None:
    text = """
    for closed in (False, True):
        batches_of = loader(2)
        iterator = iter(batches_of)
        first, second = next(iterator), next(iterator)
        if closed:
            iterator.close()

        def run(hear):
            first["x"][...] = -7
            hear()
            return rows(second)

        end = child(run)
        second["x"][...] = -8
        answer = end()
        assert answer == "[4, 5, 6, 7]", (closed, answer)
        assert rows(first) == [0, 1, 2, 3]
        assert rows(second) == [-8] * 4
        batches_of.close()
    print("right")
    """
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(text)) == ["right"]


def test_a_process_started_by_fork_has_its_arguments(tmp_path: Path) -> None:
    text = """
    context = multiprocessing.get_context("fork")
    iterator = iter(loader(2))
    queue = context.SimpleQueue()
    go = context.Event()

    def run(batch):
        go.wait()
        queue.put(rows(batch))
        batch["x"][...] = -7

    batch = next(iterator)
    process = context.Process(target=run, args=(batch,), daemon=True)
    process.start()
    del batch
    got = [rows(next(iterator)) for _ in range(300)]
    go.set()
    print(queue.get())
    process.join()
    print(got == [list(range(4 * i, 4 * i + 4)) for i in range(1, 301)])
    """
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(text)) == ["[0, 1, 2, 3]", "True"]


def test_a_child_of_a_child_keeps_what_both_held(tmp_path: Path) -> None:
    text = """
    iterator = iter(loader(2))
    batch = next(iterator)

    def run(hear):
        end = child(lambda hear: (hear(), rows(batch), batch["x"].fill(-7))[1])
        hear()
        own = iter(loader(1))
        assert [rows(next(own)) for _ in range(50)][49] == [196, 197, 198, 199]
        return end(), rows(batch)

    end = child(run)
    del batch
    for _ in range(300):
        next(iterator)
    print(end())
    """
    expected = str(("[0, 1, 2, 3]", [0, 1, 2, 3]))
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(text)) == [expected]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_child_that_a_step_forks_keeps_and_changes_its_own(
    tmp_path: Path, engine: dict[str, str]
) -> None:
    """The children hold the records of a batch, and write to them while others are made."""
    text = """
    class Forks:
        def __init__(self):
            self.ends, self.calls = [], 0

        def __call__(self, records):
            values = [int(record["x"][0]) for record in records]
            if self.calls < 3:
                def run(hear):
                    hear()
                    before = [int(record["x"][0]) for record in records]
                    for record in records:
                        assert (record["x"] == record["x"][0]).all()
                        record["x"][...] = -7
                    return before
                self.ends.append((values, child(run)))
            self.calls += 1
            if self.calls == 100:
                for before, end in self.ends:
                    answer = end()
                    assert answer == str(before), (answer, before)
            return {"x": np.stack([record["x"] for record in records])}

    class Odd(grain.transforms.Filter):
        def filter(self, element):
            return element["x"][0] % 2 == 1

    for workers in (0, 1):
        operations = [Wide(), Odd(), grain.transforms.Batch(4, batch_fn=Forks())]
        got = [rows(batch) for batch in grain.DataLoader(
            data_source=range(1200), sampler=grain.samplers.SequentialSampler(1200),
            operations=operations, worker_count=workers)]
        numbers = list(range(1, 1200, 2))
        assert got == [numbers[i : i + 4] for i in range(0, 600, 4)], (workers, got[:9])
    print("right")
    """
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(text), **engine) == ["right"]


# --- locks ---------------------------------------------------------------------------------------

READING = """
import faulthandler, signal, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

def big(element):
    return {"x": np.full(70_000, element, np.float32)}  # four are more than 1 MB

def reading(**options):
    source = grain.MapDataset.range(1_000_000).map(big).batch(4)
    return source.to_iter_dataset(grain.ReadOptions(**options))

def forks(count, act):
    \"\"\"Forks so often; each child ends by itself within 30 s, or is killed by its alarm.\"\"\"
    for number in range(count):
        pid = os.fork()
        if not pid:
            try:
                signal.alarm(30)
                faulthandler.dump_traceback_later(25)
                act()
                os._exit(0)
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                os._exit(1)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, (number, status)
"""


def test_children_go_on_with_what_a_thread_was_reading(tmp_path: Path) -> None:
    text = """
    dataset = reading(num_threads=0)
    iterator = iter(dataset)
    over = threading.Event()

    def read():
        np.random.seed(7)
        for number, batch in enumerate(iterator):
            assert batch["x"][:, -1].tolist() == list(range(4 * number, 4 * number + 4))
            if over.is_set():
                return

    thread = threading.Thread(target=read)
    thread.start()

    def act():
        state = iterator.get_state()
        expected = iter(dataset)
        expected.set_state(state)
        for _ in range(2):
            assert (next(iterator)["x"] == next(expected)["x"]).all()
        assert iterator.get_state() == expected.get_state()

    forks(100, act)
    over.set()
    thread.join()
    print("right")
    """
    assert scripts.output(tmp_path, HEAD + READING + textwrap.dedent(text)) == ["right"]


def test_children_read_though_threads_of_the_parent_read_ahead(tmp_path: Path) -> None:
    text = """
    dataset = reading(num_threads=2, prefetch_buffer_size=64)
    iterator = iter(dataset)
    taken = 0

    def act():
        for number in range(taken, taken + 3):
            assert next(iterator)["x"][:, 0].tolist() == list(range(4 * number, 4 * number + 4))

    for _ in range(30):
        next(iterator)
        taken += 1
        forks(1, act)
    print("right")
    """
    assert scripts.output(tmp_path, HEAD + READING + textwrap.dedent(text)) == ["right"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stage_that_a_thread_waits_in_is_refused_in_a_child(tmp_path: Path, workers: int) -> None:
    text = f"""
    import time
    from grain_jax._execution.prefetch_iterator import PrefetchIterator
    from grain_jax.errors import ClosedError

    class Slow(grain.transforms.Map):
        def map(self, element):
            time.sleep(0.02)
            return element

    batches = loader({workers}, Slow())
    iterator = iter(batches)
    stage = PrefetchIterator(iterator, lambda batch: batch, 1)
    over = threading.Event()

    def read():
        for batch in stage:
            if over.is_set():
                return

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.5)

    def act():
        for call in (lambda: next(stage), stage.get_state, lambda: stage.set_state({{}})):
            try:
                call()
            except ClosedError:
                continue
            raise AssertionError
        stage.close()
        batches.close()
        assert rows(next(iter(loader(0)))) == [0, 1, 2, 3]

    forks(20, act)
    over.set()
    thread.join()
    stage.close()
    batches.close()
    print("right")
    """
    assert scripts.output(tmp_path, HEAD + READING + textwrap.dedent(text)) == ["right"]


def test_a_child_has_the_generators_of_the_user(tmp_path: Path) -> None:
    """Another thread was at a record, for which the generators are seeded."""
    text = """
    inside, over = threading.Event(), threading.Event()

    def draws(element):
        inside.set()
        over.wait()
        return {"x": np.full(4, np.random.rand())}

    iterator = iter(grain.MapDataset.range(8).seed(1).map(draws).batch(2).to_iter_dataset())
    np.random.seed(5)
    expected = np.random.rand(3).tolist()
    np.random.seed(5)
    thread = threading.Thread(target=next, args=(iterator,))
    thread.start()
    inside.wait()

    def act():
        assert np.random.rand(3).tolist() == expected
        over.set()
        next(iterator)
        assert np.random.rand() not in expected

    forks(3, act)
    over.set()
    thread.join()
    assert np.random.rand(3).tolist() == expected
    print("right")
    """
    assert scripts.output(tmp_path, HEAD + READING + textwrap.dedent(text)) == ["right"]
