"""Campaign: random pipelines with random workers, stops, restores and exceptions of user code."""

from __future__ import annotations

import dataclasses
import logging
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import grain_jax as grain
from tests.faults import campaign, pieces
from tests.property import expected, library, reference
from tests.property.reference import Pipeline

__all__ = ["run"]


def run(count: int, seed: int) -> Counter[str]:
    """Runs random pipelines against the plain reference, through stops, restores and errors."""
    counts: Counter[str] = Counter()
    with grain.load([0], worker_count=1) as idle:
        iter(idle)  # what all loaders share stays, which makes each start in milliseconds
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            with tempfile.TemporaryDirectory() as folder:
                try:
                    _one(rng, Path(folder), counts)
                except BaseException as error:
                    error.add_note(f"at number {number} of seed {seed}")
                    raise
    return counts


def _one(rng: random.Random, folder: Path, counts: Counter[str]) -> None:
    pipeline = expected.draw(rng) if rng.random() < 0.9 else reference.draw_large_groups(rng)
    extra: list[tuple[int, Any]] = []
    settings: dict[str, Any] = {}
    left_over = pipeline
    may_skip = pipeline.shards == 1 and pipeline.form == "loader" and not pipeline.draws
    if may_skip and rng.random() < 0.3:
        left_over = _with_faulty_records(pipeline, rng, extra)
        settings["on_error"] = grain.ErrorPolicy(skip=ValueError)
        counts["of them with records left out"] += 1
    if rng.random() < 0.7:
        # The last batch of a device stage says how many rows there are: nothing comes behind it.
        last = len(pipeline.operations) - (pipeline.remainder is not None)
        place = rng.randint(extra[0][0] if extra else 0, last)
        once = pieces.FailsOnce(rng.randint(3, 12), folder / "once", pipeline.kind)
        extra.append((place, once))
    values = _values(left_over, folder, extra)
    (folder / "once").mkdir()
    wanted = expected.elements(pipeline, values)
    got: list[Any] = []
    state: Any = None
    for left in reversed(range(rng.randint(1, 3))):
        workers = rng.choice([0, 0, 1, 2, 3])
        with library.opened(pipeline, folder, workers, extra, **settings) as iterator:
            if state is not None:
                iterator.set_state(state)
                counts["restores"] += 1
            stop = rng.randint(len(got), len(wanted)) if left else len(wanted) + 1
            while len(got) < stop and _step(iterator, got, counts):
                pass
            state = iterator.get_state()
    problem = expected.differing(pipeline, got, wanted)
    assert not problem, (problem, pipeline, extra)
    counts["pipelines"] += 1
    counts["elements, all right"] += len(got)


def _values(pipeline: Pipeline, folder: Path, extra: library.Extra) -> list[Any]:
    """Returns what a pipeline must yield; the order of records is the library's own sampler's.

    That order is held against Grain's by the tests of samplers and of properties.
    """
    positions = np.arange(pipeline.records * pipeline.epochs)
    order = library.sampler(pipeline).keys(positions).tolist()
    never = [(place, pieces.Slow(1, 0, pipeline.kind)) for place, _ in extra]
    return expected.values(pipeline, order, folder, never)


def _with_faulty_records(
    pipeline: Pipeline, rng: random.Random, extra: list[tuple[int, Any]]
) -> Pipeline:
    """Adds a step that fails at some records; returns a pipeline that filters these.

    It comes before any flat-map, of whose outputs one takes the record with it, and any batch.
    """
    kinds = [kind for kind, *_ in pipeline.operations]
    ends = [place for place, kind in enumerate(kinds) if kind in ("batch", "flat_map")]
    place = rng.randint(0, min(ends, default=len(kinds)))
    every = rng.randint(2, 9)
    extra.append((place, pieces.Faulty(every, pipeline.kind)))
    todo = list(pipeline.operations)
    todo.insert(place, ("filter", every))
    return dataclasses.replace(pipeline, operations=tuple(todo))


def _step(iterator: Any, got: list[Any], counts: Counter[str]) -> bool:
    """Takes one element, at the second try if the first fails; False at the end."""
    before = iterator.get_state()
    while True:
        try:
            got.append(next(iterator))
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
