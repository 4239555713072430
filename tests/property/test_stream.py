"""One law: a loader yields the declared stream, for every worker count, stop and restore."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from tests.property import library, reference


@pytest.mark.parametrize("block", range(10))
def test_stream_equals_plain_reference(block: int, reference_grain: ModuleType) -> None:
    for number in range(30):
        rng = random.Random(1000 * block + number)
        pipeline = reference.draw(rng)
        order = reference.order(pipeline, reference_grain.experimental.index_shuffle)
        expected = reference.stream(pipeline, order)
        loader = library.loader(pipeline)
        assert [library.plain(v) for v in loader] == expected, pipeline
        stop = rng.randint(0, len(expected))
        iterator = iter(loader)
        begun = [library.plain(next(iterator)) for _ in range(stop)]
        restored = iter(library.loader(pipeline))
        restored.set_state(iterator.get_state())
        assert begun + [library.plain(v) for v in restored] == expected, (pipeline, stop)
        try:
            length = len(loader)
        except TypeError:
            continue
        assert length == len(expected), pipeline


@pytest.mark.parametrize("block", range(4))
def test_workers_and_restores_change_nothing(
    block: int, reference_grain: ModuleType, no_process_left: None
) -> None:
    for number in range(8):
        rng = random.Random(77_000 + 1000 * block + number)
        pipeline = reference.draw(rng)
        order = reference.order(pipeline, reference_grain.experimental.index_shuffle)
        expected = reference.stream(pipeline, order)
        stop = rng.randint(0, len(expected))
        with library.loader(pipeline, workers=rng.randint(1, 3)) as loader:
            iterator = iter(loader)
            begun = [library.plain(next(iterator)) for _ in range(stop)]
            state = iterator.get_state()
        with library.loader(pipeline, workers=rng.randint(0, 3)) as loader:
            restored = iter(loader)
            restored.set_state(state)
            rest = [library.plain(v) for v in restored]
        assert begun + rest == expected, (pipeline, stop)
