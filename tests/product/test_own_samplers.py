"""Samplers of the user's own: asked in this process, in order, once; keys and generators travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.product.pieces import Odd, load, plain_list

Batch = grain.transforms.Batch
pytestmark = pytest.mark.usefixtures("no_process_left")


class Draw(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return int(rng.integers(2**40))


class Backwards:
    """Counts who asks for what."""

    def __init__(self, size: int, wrong: dict[int, Any] | None = None) -> None:
        self.size = size
        self.asked: list[int] = []
        self.wrong = wrong or {}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        self.asked.append(index)
        if not 0 <= index < self.size:
            raise IndexError(index)
        key = self.wrong.get(index, self.size - 1 - index)
        return grain.RecordMetadata(index, key, np.random.default_rng(index))


class Unbounded(Backwards):
    __len__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Backwards, Unbounded])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_is_asked_here_in_order_and_once(kind: type[Backwards], workers: int) -> None:
    sampler = kind(12)
    with load(Batch(5), sampler=sampler, worker_count=workers) as loader:
        assert plain_list(loader) == [[11, 10, 9, 8, 7], [6, 5, 4, 3, 2], [1, 0]]
    assert sampler.asked[:12] == list(range(12))
    assert set(sampler.asked[12:]) <= {12}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrong", [12, -1, None, "a", 1.5])
def test_a_key_outside_the_source(workers: int, wrong: Any) -> None:
    with load(sampler=Backwards(12, {9: wrong}), worker_count=workers) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(9)] == [11, 10, 9, 8, 7, 6, 5, 4, 3]
        kind = IndexError if isinstance(wrong, int) else TypeError
        for _ in range(2):
            with pytest.raises(kind, match=rf"(?s)sampler Backwards.*{wrong}.*position 9"):
                next(iterator)


@pytest.mark.parametrize("kind", [Backwards, Unbounded])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_samplers_own_generators_are_obeyed(kind: type[Backwards], workers: int) -> None:
    # Also behind a filter and a batch: the one of its last record goes on there.
    operations = [Odd(), Batch(2), Draw(), Draw()]
    with load(*operations, sampler=kind(12), worker_count=workers) as loader:
        found = list(loader)
    assert found == [_second(index) for index in (2, 6, 10)]


def _second(index: int) -> int:
    rng = np.random.default_rng(index)
    rng.integers(2**40)
    return int(rng.integers(2**40))


def test_one_generator_for_all_records_does_not_count_workers() -> None:
    class Shared(Backwards):
        rng = np.random.default_rng(5)

        def __getitem__(self, index: int) -> grain.RecordMetadata:
            return grain.RecordMetadata(index, index, self.rng)

    here = list(load(Draw(), sampler=Shared(12)))
    with load(Draw(), sampler=Shared(12), worker_count=2) as loader:
        assert list(loader) == here


@pytest.mark.parametrize("kind", [Backwards, Unbounded])
def test_a_sampler_of_ones_own_restores_at_every_step(kind: type[Backwards]) -> None:
    def fresh() -> grain.DataLoaderIterator:
        return iter(load(Odd(), Batch(2), Draw(), sampler=kind(12)))

    expected = list(fresh())
    for steps in range(len(expected) + 1):
        begun, resumed = fresh(), fresh()
        for _ in range(steps):
            next(begun)
        resumed.set_state(begun.get_state())
        assert list(resumed) == expected[steps:]


def test_a_sampler_without_generators_needs_no_random_step() -> None:
    class Bare:
        def __getitem__(self, index: int) -> grain.RecordMetadata:
            return grain.RecordMetadata(index, index)

        def __len__(self) -> int:
            return 3

    assert list(load(source=range(3), sampler=Bare())) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"random_map\(Draw\).*Bare\(\.\.\., seed=0\)"):
        load(Draw(), source=range(3), sampler=Bare())


class Five(grain.transforms.FlatMap):
    max_fan_out = 5

    def flat_map(self, element: Any) -> list[Any]:
        return [element] * 5


@pytest.mark.parametrize("workers", [0, 2])
def test_outputs_of_one_record_in_several_batches_draw_by_themselves(workers: int) -> None:
    operations = [Five(), Batch(2), Draw()]
    here = list(load(*operations, source=range(6), sampler=Backwards(6)))
    assert len(set(here)) == len(here) == 15
    with load(*operations, source=range(6), sampler=Backwards(6), worker_count=workers) as loader:
        assert list(loader) == here
        begun, resumed = iter(loader), iter(loader)
        assert next(begun) == here[0]
        resumed.set_state(begun.get_state())
        assert list(resumed) == here[1:]


def test_no_length_where_the_sampler_has_none() -> None:
    with pytest.raises(TypeError, match=r"sampler has no __len__"):
        len(load(sampler=Unbounded(12)))
    assert len(load(Batch(5), sampler=Backwards(12))) == 3
