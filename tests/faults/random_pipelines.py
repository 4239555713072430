"""Campaign: random pipelines with random workers, stops, restores and exceptions of user code."""

from __future__ import annotations

import dataclasses
import logging
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import grain_jax as grain
from tests.faults import campaign, pieces
from tests.property import library, reference

__all__ = ["run"]


def run(count: int, seed: int) -> Counter[str]:
    """Runs random pipelines against the plain reference, through stops, restores and errors."""
    counts: Counter[str] = Counter()
    with grain.load([0], worker_count=1) as idle:
        iter(idle)  # what all loaders share stays, which makes each start in milliseconds
        _all(count, seed, counts)
    return counts


def _all(count: int, seed: int, counts: Counter[str]) -> None:
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            _one(random.Random(f"{seed} {number}"), Path(folder), counts)


def _one(rng: random.Random, folder: Path, counts: Counter[str]) -> None:
    pipeline = reference.draw(rng)
    expected = pieces.expected(pipeline)
    extra: list[tuple[int, Any]] = []
    settings: dict[str, Any] = {}
    if pipeline.shards == 1 and rng.random() < 0.3:
        expected = _with_faulty_records(pipeline, rng, extra)
        settings["on_error"] = grain.ErrorPolicy(skip=ValueError)
        counts["of them with records left out"] += 1
    if rng.random() < 0.7:
        place = rng.randint(extra[0][0] if extra else 0, len(pipeline.operations))
        extra.append((place, pieces.FailsOnce(rng.randint(3, 12), folder)))
    got: list[Any] = []
    state: bytes | None = None
    for left in reversed(range(rng.randint(1, 3))):
        workers = rng.choice([0, 0, 1, 2, 3])
        with pieces.loader(pipeline, workers, extra, **settings) as loader:
            iterator = iter(loader)
            if state is not None:
                iterator.set_state(state)
                counts["restores"] += 1
            stop = rng.randint(len(got), len(expected)) if left else len(expected) + 1
            while len(got) < stop and _step(iterator, got, counts):
                pass
            state = iterator.get_state()
    assert got == expected, (pipeline, extra)
    counts["pipelines"] += 1
    counts["elements, all right"] += len(got)


def _with_faulty_records(
    pipeline: reference.Pipeline, rng: random.Random, extra: list[tuple[int, Any]]
) -> list[Any]:
    """Adds a step that fails at some records; returns what is left.

    It comes before any flat-map, of whose outputs one takes the record with it, and any batch.
    """
    kinds = [kind for kind, *_ in pipeline.operations]
    ends = [place for place, kind in enumerate(kinds) if kind in ("batch", "flat_map")]
    place = rng.randint(0, min(ends, default=len(kinds)))
    every = rng.randint(2, 9)
    extra.append((place, pieces.Faulty(every)))
    todo = list(pipeline.operations)
    todo.insert(place, ("filter", every))
    return pieces.expected(dataclasses.replace(pipeline, operations=tuple(todo)))


def _step(iterator: grain.DataLoaderIterator, got: list[Any], counts: Counter[str]) -> bool:
    """Takes one element, at the second try if the first fails; False at the end."""
    before = iterator.get_state()
    while True:
        try:
            got.append(library.plain(next(iterator)))
        except StopIteration:
            return False
        except OSError as error:
            if not str(error).startswith("not yet"):
                raise
            assert iterator.get_state() == before, "an error moved the position"
            counts["exceptions"] += 1
        else:
            return True


if __name__ == "__main__":
    logging.getLogger("grain_jax").setLevel(logging.ERROR)  # records left out are no news here
    campaign.main(run, "pipelines", 2000)
