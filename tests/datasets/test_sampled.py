"""A sampler of the user's own: asked in order, checked, and its generators never spent."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors, transforms
from grain_jax._algebra import sources
from grain_jax._datasets.sampled import SampledRoot, length_of
from grain_jax._datasets.schedule import Span


class Sampler:
    """Gives what a function says."""

    def __init__(self, function: Callable[[int], Any], length: int | None = None) -> None:
        self.function = function
        self.asked: list[int] = []
        if length is not None:
            self.length = length

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.function(index)


class Finite(Sampler):
    def __len__(self) -> int:
        return self.length


def metadata(index: int, key: Any, rng: Any = None) -> grain.RecordMetadata:
    return grain.RecordMetadata(index=index, record_key=key, rng=rng)


def backwards(index: int) -> grain.RecordMetadata:
    if index >= 10:
        raise IndexError(index)
    return metadata(index, 9 - index)


def root(sampler: Any, data: Any = None) -> SampledRoot:
    given = list(range(100, 110)) if data is None else data
    return SampledRoot(sources.adapt(given), sampler, None)


def loader(sampler: Any, *operations: Any, **settings: Any) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=list(range(100, 110)), sampler=sampler, operations=operations, **settings
    )


def test_keys_travel_with_the_task() -> None:
    sampler = Finite(backwards, 10)
    one = root(sampler)
    payload = one.prepare(Span(1, 3, 3, 0))
    assert sampler.asked == [1, 4, 7]
    there = pickle.loads(pickle.dumps(one))
    block = there.read(pickle.loads(pickle.dumps(payload)))
    assert block.data == [108, 105, 102]
    assert list(block.positions) == [1, 4, 7]
    assert block.where(1) == "position 4 (record key 5)"
    part = there.read(payload.part(1, 3))
    assert (part.data, list(part.positions), part.ordinal) == ([105, 102], [4, 7], 1)


def test_absent_records() -> None:
    block = root(Finite(backwards, 10), [0, None, 2, None, 4, 5, 6, 7, 8, 9]).read(
        root(Finite(backwards, 10)).prepare(Span(5, 1, 5, 0))
    )
    assert (block.data, list(block.positions), block.rows) == ([4, 2, 0], [5, 7, 9], [0, 2, 4])


def test_the_end() -> None:
    endless = root(Sampler(backwards))
    assert endless.length is None
    assert endless.prepare(Span(8, 1, 4, 0)).count == 2
    assert endless.prepare(Span(10, 1, 4, 0)) is None
    assert list(loader(Sampler(backwards))) == list(range(109, 99, -1))
    assert list(loader(Finite(backwards, 4))) == [109, 108, 107, 106]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (10, "gives record key 10 at position 3, and the source has keys 0 to 9"),
        (-1, "gives record key -1 at position 3"),
    ],
)
def test_keys_outside_the_source(given: int, text: str) -> None:
    sampler = Finite(lambda i: metadata(i, given if i == 3 else i), 10)
    iterator = iter(loader(sampler))
    assert [next(iterator) for _ in range(3)] == [100, 101, 102]
    with pytest.raises(IndexError, match=text):
        next(iterator)


@pytest.mark.parametrize("given", [metadata(0, None), metadata(0, 1.5), metadata(0, "a"), 5, None])
def test_what_is_no_metadata(given: Any) -> None:
    with pytest.raises(errors.InvalidTypeError, match=r"Sampler gives .* at position 0.*Metadata"):
        root(Sampler(lambda i: given)).prepare(Span(0, 1, 1, 0))


def test_numpy_keys() -> None:
    assert root(Sampler(lambda i: metadata(i, np.int32(4)))).prepare(Span(0, 1, 1, 0)).keys == [4]


@pytest.mark.parametrize("kind", [LookupError, StopIteration, IndexError])
def test_errors_of_the_sampler(kind: type[Exception]) -> None:
    def fails(index: int) -> Any:
        if index == 2:
            raise kind("no more")
        return backwards(index)

    iterator = iter(loader(Finite(fails, 10)))
    assert [next(iterator), next(iterator)] == [109, 108]
    with pytest.raises(RuntimeError if kind is StopIteration else kind) as info:
        next(iterator)
    assert "in the sampler Finite, at position 2" in info.value.__notes__[0]


def test_what_comes_before_an_error_is_read_first() -> None:
    def fails(index: int) -> Any:
        if index == 2:
            raise LookupError("two")
        return backwards(index)

    one = root(Finite(fails, 10))
    assert one.prepare(Span(0, 1, 5, 0)).count == 2
    with pytest.raises(LookupError):
        one.prepare(Span(2, 1, 3, 2))


class Draw(transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return [*(element if isinstance(element, list) else []), int(rng.integers(2**40))]


def test_its_generators_are_obeyed_and_not_spent() -> None:
    kept = [np.random.default_rng(i) for i in range(10)]
    sampler = Finite(lambda i: metadata(i, i, kept[i]), 10)
    expected = [np.random.default_rng(i).integers(2**40, size=2).tolist() for i in range(10)]
    for _ in range(2):  # the second epoch draws the same: the sampler's own are as they were
        assert list(loader(sampler, Draw(), Draw())) == expected


def test_one_generator_for_all_records() -> None:
    shared = np.random.default_rng(3)
    sampler = Finite(lambda i: metadata(i, i, shared), 4)
    first = int(np.random.default_rng(3).integers(2**40))
    assert list(loader(sampler, Draw())) == [[first]] * 4


@pytest.mark.parametrize("stacks", [False, True])
def test_a_batch_has_the_generator_of_its_last_record(stacks: bool) -> None:
    class Source:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return index

    source = np.arange(6) if stacks else Source()
    data = grain.DataLoader(
        data_source=source,
        sampler=Finite(lambda i: metadata(i, i, np.random.default_rng(i)), 6),
        operations=[transforms.Batch(4), Draw()],
    )
    assert list(data) == [[int(np.random.default_rng(i).integers(2**40))] for i in (3, 5)]


def test_errors_of_the_source_name_position_and_key() -> None:
    class Faulty:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            if index == 6:
                raise OSError("disk")
            return index

    with pytest.raises(OSError, match="disk") as info:
        list(
            grain.DataLoader(
                data_source=Faulty(),
                sampler=Finite(backwards, 10),
                operations=[transforms.Batch(5)],
            )
        )
    notes = "\n".join(info.value.__notes__)
    assert "in reading the source, at position 3 (record key 6)" in notes


def test_lengths() -> None:
    assert length_of(Finite(backwards, 3)) == 3
    assert length_of(Sampler(backwards)) is None
