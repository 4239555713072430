"""Running a step over a block: who is at work, where an error came up, and which elements failed.

Steps that act on each element by itself say with `act` what they do with some of them; everything
around that is here, once for all of them.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Iterator
from typing import Any, Literal, NoReturn, Protocol

from grain_jax._algebra import held
from grain_jax._algebra.blocks import Block, Sieved
from grain_jax._values import errors, faults, progress
from grain_jax._values.trees import IMMUTABLE_TYPES

__all__ = ["Counts", "ElementStep", "Failures", "Made", "Skip", "run", "settle", "without"]

_LONGEST = 1_000
"""Characters of an exception's text that are kept of an element that is left out."""


Counts = Literal["same", "fewer", "any", "groups"]
"""How many outputs a step has: one for each element, at most one, any number, one for several."""


@dataclasses.dataclass(frozen=True, slots=True)
class Skip:
    """A record that an error policy left out.

    Attributes:
      kind: name of the exception's class.
      text: what it said, with the notes on step, position, key, and the user's line.
    """

    kind: str
    text: str


@dataclasses.dataclass(slots=True)
class Made:
    """What a step has made of a block so far.

    Attributes:
      data: the outputs.
      rows: for each output the element of the block it is made of; None where every element that
        did not fail has one output.
      outputs: for each output which one of a flat-map it is; None where the block's numbers stay.
      plain: a type whose values need no second look.
      measures: for each output what a grouping has to know of it, where that is asked.
    """

    data: list[Any]
    rows: list[int] | None = None
    outputs: list[int] | None = None
    measures: list[Any] | None = None
    plain: type | None = None


class ElementStep(Protocol):
    """A step that acts on each element by itself."""

    @property
    def title(self) -> str:
        """What error messages call the step."""

    @property
    def counts(self) -> Counts:
        """How many outputs there are."""

    def begin(self) -> Made:
        """Returns room for the outputs."""

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Adds what it makes of the elements `rows` of a block, which it may take out of it."""

    def finish(self, block: Block, made: Made) -> Block:
        """Returns the block of the outputs."""


class Failures:
    """What elements of a block have raised, so that others need not run again.

    Elements are told by their numbers in what was asked for, as `Block.rows` gives them: all that a
    flat-map made of an element fails with it.

    Args:
      at_once: exceptions that are no element's failure, and are raised wherever they come.
      skips: exceptions that leave an element out; any other one ends the run there.

    Attributes:
      skipped: elements that are left out.
      stop: the first element that is not done; None while there is none.
      error: what it raised.
      sieved: where filters note what they have left; None where nobody asks.
    """

    def __init__(
        self, at_once: tuple[type[BaseException], ...], skips: tuple[type[Exception], ...]
    ) -> None:
        self._at_once = at_once
        self._skips = skips
        self._skipped: dict[int, Skip] = {}
        self.stop: int | None = None
        self.error: BaseException | None = None
        self.sieved: list[Sieved] | None = None

    @property
    def skipped(self) -> list[tuple[int, Skip]]:
        """The elements that are left out before the stop, in order, with what they raised."""
        last = self.stop
        return sorted(
            (pair for pair in self._skipped.items() if last is None or pair[0] < last),
            key=operator.itemgetter(0),
        )

    def add(self, number: int, error: BaseException) -> bool:
        """Takes note of an element's failure; whether those after it still run.

        Raises:
          BaseException: `error`, if it is no failure of an element.
        """
        if isinstance(error, self._skips):
            skip = Skip(type(error).__name__, faults.described(error, _LONGEST))
            self._skipped.setdefault(number, skip)
            return True
        if isinstance(error, self._at_once):
            raise error
        self.stop, self.error = number, error
        return False

    def throw(self) -> NoReturn:
        """Raises what the element at the stop raised."""
        error, self.error = self.error, None
        assert error is not None
        try:
            raise error
        finally:
            del error  # the traceback holds this frame

    def has(self, number: int) -> bool:
        """Whether an element is left out, or not done."""
        return number in self._skipped or (self.stop is not None and number >= self.stop)


def run(step: ElementStep, block: Block, failures: Failures | None = None) -> Block:
    """Returns what a step makes of the elements of a block, which are not kept in it.

    Args:
      step: which.
      block: the elements.
      failures: what elements have raised, and where more of that goes; None raises it.
    """
    count = len(block)
    rows = iter(range(count))
    made = step.begin()
    failed: list[int] = []

    def at() -> int:
        # The iterator knows how far it is: nobody has to count as elements go by.
        return max(0, count - operator.length_hint(rows) - 1)

    progress.at(step.title, lambda: block.where(at()), count)
    while True:
        try:
            step.act(block, rows, made)
        except BaseException as error:
            row = at()
            if failures is None or not count:
                faults.reraise(error, step.title, block.where(row))
            _cut(made, row, failed)
            failed.append(row)
            located = faults.located(error, step.title, block.where(row))
            goes_on = failures.add(_number(block, row), located)
            del located  # its traceback holds this frame
            if goes_on:
                continue
            failed += rows
        break
    if step.counts == "fewer" and block.sieved is not None:
        _note(step.title, block, made, failed)
    if not failed:
        return step.finish(block, made)
    assert failures is not None
    return without(step.finish(_picked(block, made, failed), made), failures)


def _note(title: str, block: Block, made: Made, failed: list[int]) -> None:
    """Notes which elements a filter has kept; those that failed it has not dropped."""
    assert block.sieved is not None
    kept = made.rows
    if kept is not None:
        kept = None if len(kept) + len(failed) == len(block) else sorted([*kept, *failed])
    block.sieved.append(Sieved(title, len(block), block.rows, kept))


def settle(out: list[Any], title: str, plain: type | None) -> type | None:
    """Looks at what the user's code has returned, which is the last of `out`.

    Args:
      out: results.
      title: of the step.
      plain: what this returned before.

    Returns:
      A type whose values need no look; None if there was none yet.
    """
    kind = type(out[-1])
    if kind is type(None):
        out.pop()
        raise errors.InvalidValueError(
            f"{title} returned None. A map returns the new element; to drop elements, write a "
            "Filter."
        )
    if kind in IMMUTABLE_TYPES:
        return kind
    # At its next call the code may write to what it has kept, while this element is on its way.
    held.detach(out, -1)
    return plain


def _number(block: Block, row: int) -> int:
    return row if block.rows is None else block.rows[row]


def _cut(made: Made, row: int, failed: list[int]) -> None:
    """Takes back what was made of an element that failed half way."""
    kept = row - len(failed) if made.rows is None else bisect.bisect_left(made.rows, row)
    del made.data[kept:]
    if made.rows is not None:
        del made.rows[kept:]
    if made.outputs is not None:
        del made.outputs[kept:]
    if made.measures is not None:
        del made.measures[kept:]


def _picked(block: Block, made: Made, failed: list[int]) -> Block:
    """Returns the block whose elements the outputs are made of, one by one, if they have no rows.

    Where they have, `finish` picks; only the rows have to be known there.
    """
    if made.rows is not None:
        if block.rows is None:
            block.rows = list(range(len(block)))
        return block
    gone = set(failed)
    return block.take([row for row in range(len(block)) if row not in gone])


def without(block: Block, failures: Failures) -> Block:
    """Leaves out what is left of elements that have failed, and all behind one that stops."""
    rows = block.rows
    assert rows is not None
    if not any(map(failures.has, rows)):
        return block
    return block.take([place for place, row in enumerate(rows) if not failures.has(row)])
