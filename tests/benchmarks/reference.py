"""The stream that a workload declares, from plain Python, and whether batches are it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks import order, sources, steps
from tests.benchmarks.workloads import BINS, ROW, Workload


def expected(workload: Workload, lanes: int = 1) -> Iterator[Any]:
    """Batches that have to come out.

    Args:
      workload: what is run; of random steps the input is given.
      lanes: how many workers make batches of their own records, as Grain's and torch's do.
    """
    source = workload.source(workload.length)
    streams = [_lane(workload, source, lane, lanes) for lane in range(lanes)]
    for batches in zip(*streams, strict=False):
        yield from batches


def _lane(workload: Workload, source: Any, lane: int, lanes: int) -> Iterator[Any]:
    found = records(workload, source, lane, lanes)
    if workload.grouping != "none":
        found = groups(workload, found, ROW)
    while len(batch := list(itertools.islice(found, workload.batch))) == workload.batch:
        yield stack(batch)


def records(
    workload: Workload,
    source: Any,
    first: int = 0,
    step: int = 1,
    rng: np.random.Generator | None = None,
) -> Iterator[Any]:
    """Every `step`-th record, after the steps; without `rng` random ones are left out."""
    if isinstance(source, sources.Mixture):
        yield from itertools.islice(_mixed(workload, source), first, None, step)
        return
    if isinstance(source, dict):
        source = sources.Rows(source)
    chosen = workload.steps
    if rng is None:
        chosen = tuple(step for step in chosen if step.kind != "random")
    for index in order.endless(workload, first, step):
        if (record := steps.apply(chosen, source[index], rng)) is not None:
            yield record


def _mixed(workload: Workload, source: sources.Mixture) -> Iterator[Any]:
    """Of the first n elements the second part has n times its share, rounded down."""
    taken = [0, 0]
    while True:
        part = int((sum(taken) + 1) * source.share) - taken[1]
        record = source.parts[part][taken[part] % len(source.parts[part])]
        taken[part] += 1
        yield steps.apply(workload.steps, record, None)


def groups(workload: Workload, found: Iterator[Any], size: int) -> Iterator[Any]:
    """Rows of tokens, with the number and the place of each token's document in it."""
    pieces = (record["tokens"] for record in found)
    rows = _first_fit if workload.grouping == "first-fit" else _split
    for row in rows(pieces, size):
        tokens, segments, places = (np.zeros(size, np.int32) for _ in range(3))
        at = 0
        for number, piece in enumerate(row, 1):
            end = at + len(piece)
            tokens[at:end], segments[at:end] = piece, number
            places[at:end] = np.arange(len(piece))
            at = end
        yield {"tokens": tokens, "tokens_segment_ids": segments, "tokens_positions": places}


def _first_fit(pieces: Iterator[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    """Each piece goes into the first open row that has room; all are given when none has."""
    rows: list[list[np.ndarray]] = [[] for _ in range(BINS)]
    room = [size] * BINS
    for piece in pieces:
        need = len(piece)
        place = next((i for i, left in enumerate(room) if left >= need), None)
        if place is None:
            yield from rows
            rows, room, place = [[] for _ in range(BINS)], [size] * BINS, 0
        rows[place].append(piece)
        room[place] -= need


def _split(pieces: Iterator[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    row: list[np.ndarray] = []
    room = size
    for piece in pieces:
        while len(piece) >= room:
            yield [*row, piece[:room]] if room else row
            piece, row, room = piece[room:], [], size
        if len(piece):
            row.append(piece)
            room -= len(piece)


def stack(rows: list[Any]) -> Any:
    """A batch: arrays by name, or one array."""
    if isinstance(rows[0], dict):
        return {name: stack([row[name] for row in rows]) for name in rows[0]}
    return np.array(rows) if isinstance(rows[0], int | float | str | np.generic) else np.stack(rows)


def difference(workload: Workload, got: Any, want: Any) -> str | None:
    """What of a batch is not as it has to be; None if it is."""
    if steps.CROP_AND_FLIP in workload.steps:
        return _no_windows(np.asarray(got), want)
    if isinstance(want, dict):
        if not isinstance(got, dict) or set(got) != set(want):
            return f"got {got!r:.200}, want the keys {sorted(want)}"
        found = (difference(workload, got[name], want[name]) for name in want)
        return next(filter(None, found), None)
    rows: Callable[[Any], Any] = np.asarray
    if not np.array_equal(rows(got), want):
        return f"got {rows(got)!r:.300}, want {want!r:.300}"
    return None


def _no_windows(got: np.ndarray, images: np.ndarray) -> str | None:
    """Whether each row is a window of its image, mirrored or not; its pixels say which."""
    if got.shape != (len(images), 224, 224, 3):
        return f"got the shape {got.shape}"
    for row, image in zip(got, images, strict=True):
        plain = row if row[0, 0, 1] <= row[0, -1, 1] else row[:, ::-1]
        top, left = plain[0, 0, :2].tolist()
        if not np.array_equal(plain, image[top : top + 224, left : left + 224]):
            return f"got an image that is no window of image {image[0, 0, 2]}"
    return None
