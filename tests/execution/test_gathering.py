"""Streams of streams, with stub parents: what comes in which order, and where each goes on."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest

from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Restart
from grain_jax._algebra.groupings.batch import Batch
from grain_jax._algebra.groupings.mix import Mix
from grain_jax._algebra.groupings.turns import Turns
from grain_jax._algebra.running import Skip
from grain_jax._execution.gathering import Passed
from grain_jax._execution.grouped import Each, Groups
from grain_jax._execution.merging import Merged
from grain_jax._execution.parents import _Parent
from grain_jax._execution.runs import END, PENDING, Cursor, Run


class Letters:
    """A parent: runs of at most two elements; now and then one is not ready yet."""

    def __init__(self, letters: str, cursor: Cursor = (0, 0), skips: dict[int, Any] | None = None):
        self._letters = letters
        self._at = cursor[0]
        self._skips = skips or {}
        self._ready = itertools.cycle([True, False])
        self.left_over: list[Any] = []
        self.is_ready = True

    def advance(self) -> None:
        pass

    def close(self) -> None:
        pass

    def pull(self, most: int, block: bool) -> Any:
        if not block and not next(self._ready):
            return PENDING
        begin, end = self._at, min(self._at + min(most, 2), len(self._letters))
        if begin == end:
            return END
        self._at = end
        places = Places(self._skips)
        return Run(Held(self._letters), places, begin, end)


class Held(str):
    """What a task gave."""

    def inputs(self, begin: int, end: int) -> Any:
        return [(str(self), range(begin, end))]


class Places:
    def origin(self, row: int) -> Any:
        return None

    def __init__(self, skips: dict[int, Any]) -> None:
        self.skips = skips

    def cursor(self, row: int) -> Cursor:
        return row + 1, 0

    def whereabouts(self, begin: int, end: int) -> Any:
        return list(range(100 + begin, 100 + end)), None, None


def start(grouping: Any, count: int) -> Any:
    return ((0, 0),) * count, grouping.first(count), 0


def parents(words: list[str], place: Any) -> list[Any]:
    return [Letters(word, cursor) for word, cursor in zip(words, place[0], strict=True)]


def handed_on(streams: list[Any], grouping: Any, place: Any = None) -> Any:
    """The stream of elements as they are, by a schedule or by a grouper."""
    place = place or start(grouping, len(streams))
    schedule = grouping.schedule(place[1], len(streams))
    if schedule is None:
        return Passed(streams, grouping, place)
    return Merged(streams, schedule, place)


def passed(words: list[str], grouping: Any, place: Any = None) -> list[tuple[str, Any]]:
    place = place or start(grouping, len(words))
    stream = handed_on(parents(words, place), grouping, place)
    runs = list(iter(lambda: stream.pull(8, True), END))
    rows = [(run, row) for run in runs for row in range(run.begin, run.end)]
    return [(run.held[row], run.places.cursor(row)) for run, row in rows]


def grouped(words: list[str], grouping: Any, place: Any = None) -> list[tuple[str, Any]]:
    """The groups as words, and the place behind each."""
    place = place or start(grouping, len(words))
    feed = Groups(parents(words, place), grouping, place, grouping.size, local=False)
    found = []
    for block in itertools.cycle([False, True]):
        task = feed.next(block)
        if task is END:
            return found
        if task is not PENDING:
            text = "".join(bundle[row] for bundle, rows in task.inputs for row in rows)
            found.append((text, task.before(1)))
    raise AssertionError


def test_lanes_take_turns_until_each_has_ended() -> None:
    words = ["abc", "d", "ef"]
    found = passed(words, Turns())
    assert "".join(letter for letter, _ in found) == "adebfc"
    assert found[0][1] == ((((1, 0), (0, 0), (0, 0)), (1,), 0), 0)
    assert found[4][1] == ((((2, 0), (1, 0), (2, 0)), (0,), 0), 0)
    for number, (_, cursor) in enumerate(found, 1):
        rest = passed(words, Turns(), cursor[0])
        assert [letter for letter, _ in rest] == [letter for letter, _ in found[number:]]


@pytest.mark.parametrize(
    ("words", "batches", "expected"),
    [
        (["abcdefg"], ((3, False),), ["abc", "def", "g"]),
        (["abcdefg"], ((3, True),), ["abc", "def"]),
        (["abcdefg"], ((2, False), (2, True)), ["abcd", "efg"]),
        (["abcdefg"], ((2, True), (2, True)), ["abcd"]),
        (["abcdef", "mnop"], ((4, False),), ["abmn", "cdop", "ef"]),
        (["abcdef", "mno"], ((4, False),), ["abmn", "cdo", "ef"]),
        (["abcdef", "mno"], ((4, True),), ["abmn", "cd", "ef"]),
        ([""], ((4, True),), []),
        (["", "m"], ((2, True),), ["m"]),
    ],
)
def test_batches(words: list[str], batches: Any, expected: list[str]) -> None:
    grouping = Batch(batches)
    found = grouped(words, grouping)
    assert [text for text, _ in found] == expected
    for number, (_, place) in enumerate(found, 1):
        rest = grouped(words, grouping, place)
        assert [text for text, _ in rest] == expected[number:]
        assert [place for _, place in rest] == [place for _, place in found[number:]]


@dataclasses.dataclass(frozen=True)
class Reversed(Grouping):
    """Windows of elements, each from the last to the first: restart points are rare."""

    window: int
    size = 1

    def first(self, parents: int) -> tuple[int, ...]:
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> Any:
        return _Reversing(self.window, kept[0])


class _Reversing(Grouper):
    def __init__(self, window: int, done: int) -> None:
        super().__init__()
        self._window, self._done = window, done
        self._begin = self._count = 0
        self._over = False

    def wants(self) -> Any:
        return None if self._over else (0, self._window + self._begin - self._count)

    def take(self, parent: int, count: int, measures: Any = None) -> None:
        self._count += count
        if self._count - self._begin == self._window:
            self._flush()

    def _flush(self) -> None:
        self._done += 1
        for number in range(self._count - 1, self._begin - 1, -1):
            last = number == self._begin
            restart = Restart((self._count,), (self._done,)) if last else None
            self.groups.append(Group([(0, number, number + 1)], None, restart, self._done))
        self._begin = self._count

    def end(self, parent: int) -> None:
        self._over = True
        if self._count > self._begin:
            self._flush()


@pytest.mark.parametrize("run", [passed, grouped])
def test_outputs_between_restart_points_are_counted(run: Any) -> None:
    found = run(["abcdefg"], Reversed(3))
    assert "".join(text for text, _ in found) == "cbafedg"
    for number, (_, cursor) in enumerate(found, 1):
        place = cursor if run is grouped else cursor[0]
        rest = run(["abcdefg"], Reversed(3), place)
        assert [text for text, _ in rest] == [text for text, _ in found[number:]]
        assert [place for _, place in rest] == [place for _, place in found[number:]]


def test_records_left_out_are_told_with_the_group_they_belong_to() -> None:
    def skip(text: str) -> Skip:
        return Skip("ValueError", text)

    skips = {0: (skip("0"),), 3: (skip("2"), skip("3")), 4: (skip("4"),)}
    grouping = Batch(((2, True),))
    parent = Letters("abcde", skips=skips)
    parent.left_over = [skip("end")]
    feed = Groups([parent], grouping, start(grouping, 1), 2, local=False)
    tasks = [feed.next(True), feed.next(True)]
    assert [[s.text for _, s in task.skips] for task in tasks] == [["0"], ["2", "3"]]
    assert feed.next(True) is END
    assert [s.text for s in feed.left_over] == ["4", "end"]


def test_elements_by_themselves_know_how_many_come_before() -> None:
    feed = Each(Letters("abcde"), (((0, 0),), (0,), 0), 2, local=False)
    tasks = list(iter(lambda: feed.next(True), END))
    assert [(task.units, task.payload.ordinal) for task in tasks] == [(2, 0), (2, 2), (1, 4)]
    assert [task.label for task in tasks] == [
        "positions 100 to 101",
        "positions 102 to 103",
        "position 104",
    ]
    assert tasks[1].before(0) == (((2, 0),), (2,), 0)
    assert tasks[1].before(1) == (((3, 0),), (3,), 0)
    rest = feed.rest(tasks[1], 1)
    assert (rest.units, rest.payload.positions, rest.payload.ordinal) == (1, [103], 3)
    assert rest.before(0) == tasks[1].before(1)
    tasks[1].release()
    assert tasks[1].inputs == ()
    assert tasks[1].before(2) == (((4, 0),), (4,), 0)
    again = Each(Letters("abcde", (3, 0)), tasks[1].before(1), 2, local=False)
    assert again.next(True).payload.positions == [103, 104]


@pytest.mark.parametrize("seed", range(20))
def test_elements_are_found_by_their_numbers_among_what_is_not_delivered(seed: int) -> None:
    rng = random.Random(seed)
    letters = Held("".join(map(chr, range(1000, 1400))))
    parent = _Parent(Letters(letters), (0, 0))
    count = 0
    for _ in range(60):
        step = rng.randint(1, 6)
        parent.add(Run(letters, Places({}), count, count + step))
        count += step
        for _ in range(3):
            first = rng.randint(parent.first, count)
            end = rng.randint(first, count)
            runs = parent.between(first, end)
            assert [n for run in runs for n in range(run.begin, run.end)] == [*range(first, end)]
        if rng.random() < 0.4 and parent.first < count:
            end = rng.randint(parent.first + 1, count)
            parent.deliver(end)
            assert (parent.first, parent.cursor) == (end, (end, 0))
            assert [run.begin for run in parent.between(end, count)][:1] == [end][: count - end]


@pytest.mark.parametrize("grouping", [Turns(), Mix((2, 1)), Reversed(3)], ids=str)
def test_elements_that_are_here_travel_together(grouping: Any) -> None:
    """One run of elements of several runs says of each what its own run says of it."""
    skips = {3: ("before d",), 5: ("before f",)}

    def streams() -> list[Any]:
        words = [Letters("abcdefgh", skips=skips), Letters("mnopqrst")]
        return words[:1] if isinstance(grouping, Reversed) else words

    stream, alone = handed_on(streams(), grouping), handed_on(streams(), grouping)
    runs = list(iter(lambda: stream.pull(16, True), END))
    singles = list(iter(lambda: alone.pull(1, True), END))
    assert len(runs) < len(singles)
    assert len(singles) in (8, 12, 16)
    assert all(len(run) == 1 for run in singles)
    rows = [(run, row) for run in runs for row in range(run.begin, run.end)]
    for (run, row), single in zip(rows, singles, strict=True):
        assert run.held[row] == single.held[single.begin]
        assert run.places.cursor(row) == single.places.cursor(single.begin)
        assert run.places.skips.get(row) == single.places.skips.get(single.begin)
        where = single.places.whereabouts(single.begin, single.end)
        assert run.places.whereabouts(row, row + 1) == where
    for run in runs:
        inputs = run.held.inputs(run.begin, run.end)
        found = [bundle[row] for bundle, rows in inputs for row in rows]
        assert found == [run.held[row] for row in range(run.begin, run.end)]
        where = [run.places.whereabouts(row, row + 1)[0][0] for row in range(run.begin, run.end)]
        assert run.places.whereabouts(run.begin, run.end) == (where, None, None)


def test_what_fails_while_others_are_here_fails_behind_them() -> None:
    class Failing(Letters):
        def pull(self, most: int, block: bool) -> Any:
            if self._at == 4:
                raise OSError("no such letter")
            return super().pull(1, True)

    for grouping, expected in ((Turns(), "abcd"), (Reversed(2), "badc")):
        stream = handed_on([Failing("abcdef")], grouping)
        run = stream.pull(16, True)
        assert "".join(run.held[row] for row in range(run.begin, run.end)) == expected
        for _ in range(2):
            with pytest.raises(OSError, match="no such letter"):
                stream.pull(16, True)
