"""How many Python functions the trainer calls for a batch: what it costs beside the work itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import grain_jax as grain

pytestmark = [
    pytest.mark.usefixtures("no_process_left"),
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="the numbers are those of Python 3.11"
    ),
]


def odd(number: int) -> bool:
    return bool(number % 2)


def calls(iterator: Any, batches: int) -> float:
    """Calls for each of the next batches, in all threads."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        for _ in range(batches):
            next(iterator)
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return count / batches


def least(iterator: Any, enough: float = 0.0) -> float:
    """What a batch takes, where the trainer does not wait: there it looks again now and then.

    On a busy machine it waits in most batches; as soon as some took `enough`, no more are asked.
    """
    found = calls(iterator, 32)
    for _ in range(100 if enough else 5):
        if found <= enough:
            break
        found = min(found, calls(iterator, 32))
    return found


@pytest.mark.parametrize(
    ("steps", "most"),
    [
        (lambda stream: stream.batch(256), 25),
        (lambda stream: stream.filter(odd).batch(256), 60),
    ],
    ids=["plain", "behind a filter"],
)
def test_calls_for_a_batch_of_256(steps: Callable[[Any], Any], most: int) -> None:
    stream = steps(grain.MapDataset.range(10**7).to_iter_dataset())
    options = grain.MultiprocessingOptions(num_workers=2)
    with iter(stream.mp_prefetch(options)) as iterator:
        for _ in range(60):  # until tasks are as large as they get
            next(iterator)
        assert least(iterator, most) <= most


def steps_of(stream: Any) -> Any:
    return stream.map(float).map(float).map(float).filter(bool).batch(256)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "four steps"])
def test_calls_that_measuring_adds(workers: int, plain: bool) -> None:
    stream = grain.MapDataset.range(1, 10**7).to_iter_dataset()
    stream = stream.batch(256) if plain else steps_of(stream)
    found = []
    for on in (False, True):
        options = grain.MultiprocessingOptions(num_workers=workers, enable_profiling=on)
        with iter(stream.mp_prefetch(options)) as iterator:
            for _ in range(60):
                next(iterator)
            found.append(least(iterator, found[0] + 15 if on else 0.0))
            if on:
                assert iterator.stats().steps[0].records >= 60 * 256
    assert found[1] <= found[0] + 15
