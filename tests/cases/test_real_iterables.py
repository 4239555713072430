"""Streams of the user's own: data sets of Hugging Face, scripts, the device stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import grain_jax as grain
from tests.cases import scripts
from tests.property import trees

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("no_process_left"),
]


def rows(data: Any) -> list[int]:
    return [row["x"] for row in data]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["generator", "mapped", "shards"])
def test_data_sets_of_hugging_face(kind: str, workers: int) -> None:
    datasets = pytest.importorskip("datasets")

    def made() -> Any:
        if kind == "generator":

            def numbers(n: int) -> Any:
                for x in range(n):
                    yield {"x": x, "text": "a" * x}

            return datasets.IterableDataset.from_generator(numbers, gen_kwargs={"n": 24})
        table = datasets.Dataset.from_dict({"x": list(range(24)), "text": ["a"] * 24})
        data = table.to_iterable_dataset(num_shards=3)
        return data if kind == "shards" else data.map(lambda row: {"x": row["x"] + 1})

    expected = rows(made())
    shared = made()
    for make in (made, lambda: shared, shared):
        stream = grain.IterDataset.from_iterable(make).map(lambda row: row["x"] * 10)
        stream = trees.with_workers(stream, workers) if workers else stream
        with iter(stream) as iterator:
            states, found = [iterator.get_state()], []
            for x in iterator:
                found.append(x)
                states.append(json.loads(json.dumps(iterator.get_state())))
            assert found == [10 * x for x in expected]
            for place in (0, 1, 7, 8, 13, 24):
                iterator.set_state(states[place])
                assert list(iterator) == found[place:]
    assert rows(shared) == expected  # its own position is as it was


@pytest.mark.parametrize("memory", ["", "file"])
@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
def test_a_script_whose_elements_are_of_its_own_class(
    tmp_path: Path, mode: str, memory: str
) -> None:
    text = """
        import dataclasses
        import grain_jax as grain

        @dataclasses.dataclass
        class Word:
            x: int
            def twice(self):
                return 2 * self.x

        def words():
            for x in range(6):
                yield Word(x)

        options = grain.MultiprocessingOptions(num_workers=2)
        stream = grain.IterDataset.from_iterable(words)
        found = list(stream.map(lambda word: word).mp_prefetch(options))
        print({type(word) is Word for word in found}, [word.twice() for word in found])
        print(list(stream.filter(lambda word: word.x % 2).map(Word.twice).mp_prefetch(options)))
        """
    settings = {"GRAIN_JAX_ENGINE_MODE": mode, "GRAIN_JAX_ENGINE_MEMORY": memory}
    assert scripts.output(tmp_path, text, **settings) == [
        "{True} [0, 2, 4, 6, 8, 10]",
        "[2, 6, 10]",
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_behind_the_device_stage(workers: int) -> None:
    class Numbers:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            if self.at == 20:
                raise StopIteration
            self.at += 1
            return self.at - 1

        def get_state(self) -> int:
            return self.at

        def set_state(self, state: int) -> None:
            self.at = state

    stream = grain.IterDataset.from_iterable(Numbers).map(lambda x: 10 * x).batch(4)
    stream = trees.with_workers(stream, workers) if workers else stream
    expected = [[10 * x for x in range(begin, begin + 4)] for begin in range(0, 20, 4)]
    with grain.prefetch_to_device(stream) as iterator:
        found = [next(iterator).tolist() for _ in range(2)]
        state = json.loads(json.dumps(iterator.get_state()))
        assert found + [batch.tolist() for batch in iterator] == expected
    with grain.prefetch_to_device(stream) as iterator:
        iterator.set_state(state)
        assert [batch.tolist() for batch in iterator] == expected[2:]


def test_an_interpreter_that_ends_in_mid_stream(tmp_path: Path) -> None:
    text = """
        import threading
        import grain_jax as grain

        def stuck():
            yield 1
            threading.Event().wait()

        options = grain.MultiprocessingOptions(num_workers=1)
        stream = grain.IterDataset.from_iterable(stuck).map(lambda x: x).mp_prefetch(options)
        iterator = iter(stream)
        print(next(iterator))
        """
    assert scripts.output(tmp_path, text) == ["1"]
