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
