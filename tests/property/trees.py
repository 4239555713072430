"""Streams made of streams: the same with any number of workers, from every position on."""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import grain_jax as grain

__all__ = ["check", "form", "of", "of_lines", "same", "whole", "with_workers"]

Stream = grain.IterDataset[Any]

_WHOLE, _SOME = 7, 4


def of(source: Sequence[Any], make: Callable[[Stream], Stream] = lambda stream: stream) -> Stream:
    """What an operator makes of the elements of a source."""
    return make(grain.MapDataset.source(source).to_iter_dataset())


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def of_lines(lines: Sequence[str]) -> Stream:
    """The stream of the lines of a file."""
    text = "".join(f"{line}\n" for line in lines)
    path = Path(_folder().name, f"{zlib.crc32(text.encode())}.txt")
    if not path.exists():  # a file that is written to again is another one
        path.write_text(text)
    return grain.experimental.TextLinesIterDataset(path)


def with_workers(stream: Stream, workers: int) -> Stream:
    """The stream, done by so many worker processes."""
    return stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def whole(stream: Stream, workers: int = 0) -> list[Any]:
    """All elements."""
    iterator = iter(with_workers(stream, workers) if workers else stream)
    with iterator:
        return list(iterator)


def check(stream: Stream, workers: Iterable[int] = (0, 1, 3), every: int = 1) -> list[Any]:
    """Asserts that a stream is the same in process and with workers, from every position on.

    Args:
      stream: without workers.
      workers: how many, in turn, restore.
      every: how far apart the positions are that are restored.

    Returns:
      Its elements.
    """
    states, elements = [], []
    with iter(stream) as iterator:
        states.append(json.dumps(iterator.get_state()))
        for element in iterator:
            elements.append(element)
            states.append(json.dumps(iterator.get_state()))
    assert len({json.dumps(form(json.loads(state).get("cursor"))) for state in states}) == 1
    for count in workers:
        chosen = with_workers(stream, count) if count else stream
        apart = max(every, len(states) // 4) if count else every
        with iter(chosen) as iterator:
            for place in range(0, len(states), apart):
                if place:
                    iterator.set_state(json.loads(states[place]))
                # Every stream to its end from some positions, and a few elements from all of them.
                most = None if count or place % _WHOLE == 0 else _SOME
                rest = list(itertools.islice(iterator, most))
                assert same(rest, elements[place:][:most]), (stream, count, place, rest)
    return elements


def form(cursor: Any) -> Any:
    """How a cursor is nested, without its numbers."""
    return [form(part) for part in cursor] if isinstance(cursor, list) else "n"


def same(found: Any, expected: Any) -> bool:
    """Whether two trees of elements are equal, types and dtypes too."""
    import jax  # not by workers, which import this module with the functions of a test

    ours, wanted = jax.tree_util.tree_flatten(found), jax.tree_util.tree_flatten(expected)
    return ours[1] == wanted[1] and all(map(_same_leaf, ours[0], wanted[0]))


def _same_leaf(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)
