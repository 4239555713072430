"""One law: a loader yields the declared stream, for every worker count, stop and restore."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import grain_jax as grain
from tests.property import expected, library, reference

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.fixture(scope="module", autouse=True)
def processes_are_kept() -> Iterator[None]:
    """What all loaders share stays, which makes each start in milliseconds."""
    with grain.load([0], worker_count=1) as idle:
        iter(idle)
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("block", range(10))
def test_stream_equals_plain_reference(block: int, reference_grain: ModuleType) -> None:
    """Integers in lists, in this process: many pipelines of all orders of steps."""
    for number in range(12):
        rng = random.Random(1000 * block + number)
        pipeline = reference.draw(rng)
        order = reference.order(pipeline, reference_grain.experimental.index_shuffle)
        values = reference.stream(pipeline, order)
        loader = library.loader(pipeline)
        assert [library.plain(v) for v in loader] == values, pipeline
        stop = rng.randint(0, len(values))
        iterator = iter(loader)
        begun = [library.plain(next(iterator)) for _ in range(stop)]
        restored = iter(library.loader(pipeline))
        restored.set_state(iterator.get_state())
        assert begun + [library.plain(v) for v in restored] == values, (pipeline, stop)
        for counts in (loader, restored):
            if pipeline.is_counted:
                assert len(counts) == len(values), pipeline
            else:
                with pytest.raises(TypeError, match="unknown"):
                    len(counts)


@pytest.mark.parametrize("block", range(12))
def test_any_source_and_kind_of_element(
    block: int, folder: Path, reference_grain: ModuleType
) -> None:
    """In this process; every fourth pipeline with workers. `make faults` draws thousands."""
    for number in range(8):
        rng = random.Random(f"any {block} {number}")
        pipeline = expected.draw(rng)
        _check(pipeline, rng, folder / str(number), reference_grain, workers=number % 4 == 0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", range(2))
def test_groups_of_more_records_than_there_is_room_for(
    block: int, folder: Path, reference_grain: ModuleType
) -> None:
    for number in range(3):
        rng = random.Random(f"large groups {block} {number}")
        pipeline = reference.draw_large_groups(rng)
        _check(pipeline, rng, folder / str(number), reference_grain, workers=True)


def _check(
    pipeline: reference.Pipeline,
    rng: random.Random,
    folder: Path,
    reference_grain: ModuleType,
    workers: bool,
) -> None:
    """Takes some elements, saves the position, and takes the rest elsewhere."""
    folder.mkdir()
    order = reference.order(pipeline, reference_grain.experimental.index_shuffle)
    values = expected.values(pipeline, order, folder)
    wanted = expected.elements(pipeline, values)
    stop = rng.randint(0, len(wanted))
    before, after = (rng.randint(0, 3), rng.randint(0, 3)) if workers else (0, 0)
    with library.opened(pipeline, folder, before) as iterator:
        found: list[Any] = [next(iterator) for _ in range(stop)]
        state = iterator.get_state()
    with library.opened(pipeline, folder, after) as iterator:
        iterator.set_state(state)
        found += iterator
    problem = expected.differing(pipeline, found, wanted)
    assert not problem, (problem, pipeline, stop, before, after)


@pytest.mark.parametrize("block", range(4))
def test_workers_and_restores_change_nothing(block: int, reference_grain: ModuleType) -> None:
    for number in range(8):
        rng = random.Random(77_000 + 1000 * block + number)
        pipeline = reference.draw(rng)
        order = reference.order(pipeline, reference_grain.experimental.index_shuffle)
        values = reference.stream(pipeline, order)
        stop = rng.randint(0, len(values))
        with library.loader(pipeline, workers=rng.randint(1, 3)) as loader:
            iterator = iter(loader)
            begun = [library.plain(next(iterator)) for _ in range(stop)]
            state = iterator.get_state()
        with library.loader(pipeline, workers=rng.randint(0, 3)) as loader:
            restored = iter(loader)
            restored.set_state(state)
            rest = [library.plain(v) for v in restored]
        assert begun + rest == values, (pipeline, stop)
