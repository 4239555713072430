"""Units: what a stage acts on one after the other, cut out of the elements of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from grain_jax._algebra.blocks import Block, joined
from grain_jax._algebra.running import Failures
from grain_jax._datasets.stages import Stage

__all__ = ["before_gap", "each", "of_block", "of_groups", "of_payload"]


def before_gap(rows: Sequence[int]) -> int:
    """Returns the first number that is missing among 0, 1, 2 and so on."""
    return next((place for place, row in enumerate(rows) if place != row), len(rows))


def each(
    units: Iterable[tuple[int, Any]], run: Callable[[Any], Block | None], failures: Failures
) -> Block:
    """Returns what `run` makes of units, each by itself, up to one that stops; rows are units."""
    results: list[Block] = []
    sieved = [] if failures.sieved is None else failures.sieved
    for unit, part in units:
        before = len(sieved)
        try:
            result = run(part)
        except BaseException as error:
            del sieved[before:]
            if not failures.add(unit, error):
                break
            continue
        sieved[before:] = [one._replace(units=[unit] * one.seen) for one in sieved[before:]]
        if result is not None:
            result.rows = [unit] * len(result)
            results.append(result)
    return joined(results) if results else Block([], [], rows=[])


def of_groups(
    stage: Stage, sizes: Sequence[int], layouts: Sequence[Any] | None, block: Block
) -> Iterator[tuple[int, Block]]:
    """Yields units and their blocks, each of which counts as a full one."""
    end = 0
    for unit, size in enumerate(sizes):
        begin, end = end, end + size
        piece = block.move(begin, end)
        piece.ordinal = block.ordinal + unit * stage.unit
        piece.layout = None if layouts is None else layouts[unit]
        yield unit, piece


def of_payload(payload: Any, size: int) -> Iterator[tuple[int, Any]]:
    """Yields units and their payloads."""
    for unit, begin in enumerate(range(0, payload.count, size)):
        yield unit, payload.part(begin, min(begin + size, payload.count))


def of_block(stage: Stage, block: Block) -> Iterator[tuple[int, Block]]:
    """Yields units and their blocks; a unit whose record is absent is left out."""
    size, rows, first = stage.unit, block.rows, block.ordinal
    for place in range(0, len(block), size):
        piece = block.move(place, place + size)
        unit = place // size if rows is None else rows[place]
        piece.rows, piece.ordinal = None, first + unit * size
        yield unit, piece
