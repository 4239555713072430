"""Groupings of every kind there is, as short as can be, to test what runs them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import grain_jax as grain
from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Measure, Restart
from tests.property import sequences

__all__ = ["Chain", "FirstFit", "Limit", "Mix", "Repeat", "Split", "Window", "Zip", "stream"]


def stream(
    grouping: Grouping, *parents: grain.IterDataset[Any], make: Callable[..., Any] | None = None
) -> grain.IterDataset[Any]:
    """What a grouping makes of streams."""
    result: grain.IterDataset[Any] = grain.IterDataset(parents)
    result._make_of(parents, grouping, type(grouping).__name__.lower(), make)
    return result


class _Work(Grouper):
    """A grouper that keeps its parents' counts."""

    def __init__(self, of: Any, kept: tuple[int, ...], parents: int) -> None:
        super().__init__()
        self.of, self.kept, self.counts = of, list(kept), [0] * parents
        self.over = False
        self.open()

    def open(self) -> None:
        pass

    def wants(self) -> tuple[int, int] | None:
        return None if self.over else (0, 1)

    def end(self, parent: int) -> None:
        self.over = True

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        for place in range(count):
            self.counts[parent] += 1
            self.one(parent, None if measures is None else measures[place])

    def one(self, parent: int, measure: Any) -> None:
        raise NotImplementedError

    def emit(self, members: Any, layout: Any = None, **more: Any) -> None:
        restart = Restart(
            tuple(more.get("delivered", self.counts)), tuple(more.get("kept", self.kept))
        )
        group = [(parent, number, number + 1) for parent, number in members]
        last = more.get("restarts", True)
        self.groups.append(Group(group, layout, restart if last else None, 0, more.get("output")))


class _Stub(Grouping):
    work: type[_Work]
    numbers = 1

    def first(self, parents: int) -> tuple[int, ...]:
        return (0,) * self.numbers

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        return self.work(self, kept, parents)


class _Limiting(_Work):
    def wants(self) -> tuple[int, int] | None:
        left = self.of.count - self.kept[0]
        return (0, left) if left > 0 and not self.over else None

    def one(self, parent: int, measure: Any) -> None:
        self.kept[0] += 1
        self.emit([(0, self.counts[0] - 1)])


@dataclasses.dataclass(frozen=True)
class Limit(_Stub):
    """The first elements."""

    count: int
    work = _Limiting

    def of_shard(self, shards: int) -> Limit:
        assert self.count % shards == 0
        return Limit(self.count // shards)


class _Mixing(_Work):
    def wants(self) -> tuple[int, int] | None:
        return None if self.over else (self.of.order[self.kept[0] % len(self.of.order)], 1)

    def one(self, parent: int, measure: Any) -> None:
        self.kept[0] += 1
        self.emit([(parent, self.counts[parent] - 1)])


@dataclasses.dataclass(frozen=True)
class Mix(_Stub):
    """Elements of parents in an order that comes again and again."""

    order: tuple[int, ...]
    work = _Mixing


class _Chaining(_Work):
    def wants(self) -> tuple[int, int] | None:
        return (self.kept[0], 5) if self.kept[0] < len(self.counts) else None

    def one(self, parent: int, measure: Any) -> None:
        self.emit([(parent, self.counts[parent] - 1)])

    def end(self, parent: int) -> None:
        self.kept[0] += 1


@dataclasses.dataclass(frozen=True)
class Chain(_Stub):
    """One parent after the other."""

    work = _Chaining


class _Repeating(_Work):
    def wants(self) -> tuple[int, int] | None:
        return (0, 4) if self.kept[0] < self.of.epochs else None

    def epoch(self, parent: int) -> int:
        return self.kept[0]

    def one(self, parent: int, measure: Any) -> None:
        self.emit([(0, self.counts[0] - 1)])

    def end(self, parent: int) -> None:
        self.kept[0] += 1


@dataclasses.dataclass(frozen=True)
class Repeat(_Stub):
    """A stream several times."""

    epochs: int
    work = _Repeating


class _Zipping(_Work):
    def wants(self) -> tuple[int, int] | None:
        return None if self.over else (int(np.argmin(self.counts)), 1)

    def one(self, parent: int, measure: Any) -> None:
        if len(set(self.counts)) == 1:
            self.emit([(part, count - 1) for part, count in enumerate(self.counts)])


@dataclasses.dataclass(frozen=True)
class Zip(_Stub):
    """One element of each parent."""

    numbers = 0
    work = _Zipping


class _Shuffling(_Work):
    begin = 0

    def wants(self) -> tuple[int, int] | None:
        return None if self.over else (0, self.of.size + self.begin - self.counts[0])

    def one(self, parent: int, measure: Any) -> None:
        if self.counts[0] - self.begin == self.of.size:
            self.flush()

    def flush(self) -> None:
        order = list(range(self.begin, self.counts[0]))
        random.Random(f"{self.of.size}/{self.kept[0]}").shuffle(order)
        self.kept[0] += 1
        for number in order:
            self.emit([(0, number)], restarts=number == order[-1])
        self.begin = self.counts[0]

    def end(self, parent: int) -> None:
        super().end(parent)
        if self.counts[0] > self.begin:
            self.flush()


@dataclasses.dataclass(frozen=True)
class Window(_Stub):
    """Windows, each in an order of its own: restart points are rare."""

    size: int
    work = _Shuffling


class _Packing(_Work):
    def open(self) -> None:
        self.rows: list[tuple[list[tuple[int, int]], list[int]]] = []

    def one(self, parent: int, measure: Any) -> None:
        number = self.counts[0] - 1
        for row in self.rows:
            if sum(row[1]) + measure <= self.of.length:
                break
        else:
            if len(self.rows) == self.of.bins:
                self.flush(number)
            row = [], []
            self.rows.append(row)
        row[0].append((0, number))
        row[1].append(measure)

    def flush(self, delivered: int) -> None:
        for members, lengths in self.rows:
            last = members is self.rows[-1][0]
            self.emit(members, lengths, restarts=last, delivered=(delivered,))
        self.rows = []

    def end(self, parent: int) -> None:
        super().end(parent)
        self.flush(self.counts[0])


@dataclasses.dataclass(frozen=True)
class FirstFit(_Stub):
    """Rows of a length; when an element fits nowhere, all go out and it begins the next ones."""

    length: int
    bins: int
    numbers = 0
    work = _Packing

    @property
    def measure(self) -> Measure:  # type: ignore[override]
        return size


class _Splitting(_Work):
    def open(self) -> None:
        self.members: list[tuple[int, int]] = []
        self.cuts: list[tuple[int, int]] = []
        self.room = self.of.length
        self.offset = self.kept[0]

    def one(self, parent: int, measure: Any) -> None:
        begin, self.offset, number = self.offset, 0, self.counts[0] - 1
        piece = 0
        while begin < measure:
            end = min(measure, begin + self.room)
            self.members.append((0, number))
            self.cuts.append((begin, end))
            self.room -= end - begin
            if not self.room:
                whole = end == measure
                self.flush((number + whole,), (0 if whole else end,), piece)
                piece += 1
            begin = end

    def flush(self, delivered: Any, kept: Any, piece: int = 0) -> None:
        self.emit(self.members, self.cuts, delivered=delivered, kept=kept, output=piece)
        self.members, self.cuts, self.room = [], [], self.of.length

    def end(self, parent: int) -> None:
        super().end(parent)
        if self.members:
            self.flush(self.counts, (0,))


@dataclasses.dataclass(frozen=True)
class Split(_Stub):
    """Elements end to end, cut every so many."""

    length: int
    work = _Splitting

    @property
    def measure(self) -> Measure:  # type: ignore[override]
        return size


def size(element: Any) -> int:
    """How many numbers an element has."""
    return len(sequences.decode(element))
