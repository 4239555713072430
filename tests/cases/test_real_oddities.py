"""Odd things where plain ones are expected: an answer within a second, whatever they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Endless:
    def __iter__(self) -> Any:
        while True:
            yield "x"

    def __repr__(self) -> str:
        return "endless"


NOTES: dict[str, tuple[Any, list[str]]] = {
    "none": (None, []),
    "a number": (5, ["5"]),
    "text": ("abc", ["abc"]),
    "numbers": ([1, 2], ["1", "2"]),
    "a tuple": (("a",), ["a"]),
    "a dict": ({"a": 1}, ["{'a': 1}"]),
    "without text": ([Unprintable()], ["(a note whose text cannot be made)"]),
    "endless": (Endless(), ["endless"]),
}


class Raises(grain.transforms.Map):
    def __init__(self, notes: Any) -> None:
        self.notes = notes

    def map(self, element: Any) -> Any:
        error: Any = ValueError("boom")
        error.__notes__ = self.notes
        raise error


class Refusing(ValueError):
    """Has no notes to give, and takes none."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise RuntimeError("no notes")
        return super().__getattribute__(name)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", NOTES)
def test_odd_notes_travel_with_their_exception(workers: int, kind: str) -> None:
    notes, texts = NOTES[kind]
    with (
        grain.load(
            [1], transformations=[Raises(notes)], num_epochs=1, worker_count=workers
        ) as loader,
        pytest.raises(ValueError, match="boom") as caught,
    ):
        next(iter(loader))
    got = caught.value.__notes__
    assert got[: len(texts)] == texts
    assert got[len(texts)].startswith("in step 1: map(Raises), at position 0")


class Refuses(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        raise Refusing("boom")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_that_refuses_notes_is_itself(workers: int) -> None:
    with (
        grain.load([1], transformations=[Refuses()], num_epochs=1, worker_count=workers) as loader,
        pytest.raises(Refusing),
    ):
        next(iter(loader))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [900, 3000])
def test_a_state_nested_deep_is_refused(depth: int) -> None:
    loader_state = json.loads(iter(grain.load([1, 2], worker_count=0)).get_state())
    for key in loader_state:
        text = json.dumps({**loader_state, key: "HERE"})
        text = text.replace('"HERE"', "[" * depth + "1" + "]" * depth)
        iterator = iter(grain.load([1, 2], worker_count=0))
        with pytest.raises(grain.errors.StateError):
            iterator.set_state(text.encode())
        assert next(iterator) == 1
    dataset = grain.MapDataset.source([1, 2]).to_iter_dataset()
    dataset_state = iter(dataset).get_state()
    for key in dataset_state:
        stream = iter(dataset)
        with pytest.raises(grain.errors.StateError):
            stream.set_state({**dataset_state, key: nested(depth)})
        assert next(stream) == 1
    for state in (nested(depth), {"processes": [nested(depth)]}):
        with pytest.raises(grain.errors.StateError):
            iter(dataset).set_state(state)  # type: ignore[arg-type]
