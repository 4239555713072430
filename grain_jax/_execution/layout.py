"""Layout: how a stream is dealt out over shards and lanes, and what positions look like in a state.

A stream whose counts are known in advance has one number for a position, the same on every process
and for every number of them: such a state is *elastic*. Any other stream has a cursor; see `runs`.

Where records are counted as they come, each shard batches on its own, so that the shards of the run
that began the stream fix what belongs together. A run with fewer processes *joins* them: each takes
several neighbouring shards, and makes each batch of an equal share of every one of these.
"""

from __future__ import annotations

import dataclasses

from grain_jax._datasets import schedule
from grain_jax._datasets.plan import Branch, Plan
from grain_jax._datasets.stages import Stage
from grain_jax._execution.runs import Cursor
from grain_jax._values import errors

__all__ = ["Layout", "Position"]

# More elements than any run comes to see.
_ENDLESS = 1 << 50


@dataclasses.dataclass(frozen=True, slots=True)
class Position:
    """Where an iterator stands.

    Attributes:
      base: position from which shards are counted; above 0 only in elastic streams.
      cursor: where to go on; None before the first element.
      has_gaps: whether absent elements were met where none was expected.
      skipped: how many records an error policy has left out.
    """

    base: int = 0
    cursor: Cursor | None = None
    has_gaps: bool = False
    skipped: int = 0


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a stream is dealt out.

    Attributes:
      length: positions in the whole stream; None if endless or unknown.
      shard: index and count, dealt by position.
      sampler_shard: index and count, where the sampler itself gives each shard its own positions.
      lanes: how many interleaved streams fix the order.
      joined: how many shards of the run that began the stream this one is made of.
      start: where the stream begins: above 0 for a later epoch.
      even: whether the shards of the loader leave out what does not divide evenly.
      virtual: over how many shards the user deals the stream out; None leaves that to a state.
    """

    length: int | None
    shard: tuple[int, int] = (0, 1)
    sampler_shard: tuple[int, int] = (0, 1)
    lanes: int = 1
    joined: int = 1
    start: int = 0
    even: bool = False
    virtual: int | None = None

    @property
    def shards(self) -> int:
        """How many shards the run had that began the stream."""
        return self.shard[1] * self.joined

    @property
    def streams(self) -> int:
        """How many streams with a cursor of their own run here: of lanes, or of joined shards."""
        return self.lanes * self.joined

    @property
    def end(self) -> int | None:
        """The first position that no shard takes; None if endless or unknown."""
        if self.length is None or not self.even:
            return self.length
        return self.length - (self.length - self.start) % self.shards

    def first(self) -> Position:
        """Returns the position before the first element."""
        return Position(base=self.start)

    def is_elastic(self, stages: list[Stage]) -> bool:
        """Whether a position is one number for all shards."""
        return (
            self.lanes == 1
            and self.sampler_shard[1] == 1
            and all(stage.counted and not stage.local for stage in stages)
        )

    def is_joinable(self, branch: Branch) -> bool:
        """Whether a run with fewer shards can take several of these together.

        That is where the last that counts is a batch: then each batch has an equal share of every
        shard, and all that comes before it is done for each shard by itself.
        """
        return (
            self.shards > 1
            and self.lanes == 1
            and self.sampler_shard[1] == 1
            and branch.shared is not None
        )

    def of_stream(self, index: int) -> Layout:
        """Returns the layout of a part of a lane's or joined shard's tree, but for its length."""
        number = self.shard[0] * self.joined + (index if self.joined > 1 else 0)
        return Layout(None, shard=(number, self.shards), even=self.even)

    def lane(self, index: int, base: int, first: Stage | None) -> schedule.Lane:
        """Returns one lane or joined shard, in units of the first stage."""
        result = schedule.lane(
            self.end,
            base=base,
            shard=self.of_stream(index).shard,
            lane_index=0 if self.joined > 1 else index,
            lanes=self.lanes,
            batches=first.batches if first is not None else (),
        )
        return result.within(*self.sampler_shard) if self.sampler_shard[1] > 1 else result

    def elements(self, stages: list[Stage]) -> int | None:
        """Returns how many elements this shard has; None for an endless stream, or if unknown."""
        if not _gives_one_each(stages):
            return None
        lanes = [self.lane(index, self.start, stages[0]) for index in range(self.lanes)]
        units = [lane.units for lane in lanes if lane.units is not None]
        return sum(units) if len(units) == len(lanes) else None

    def length_of(self, what: str, stages: list[Stage]) -> int:
        """Returns how many elements this shard has.

        Args:
          what: whose length the user asks for.
          stages: those that run; empty where what comes behind them makes the number unknown.

        Raises:
          InvalidTypeError: where nobody can know it.
        """
        length = self.elements(stages)
        if length is None:
            reason = (
                "the stream has no end: give the sampler num_epochs"
                if _gives_one_each(stages)
                else "a filter, flat_map or operation makes the number of elements unknown, or a "
                "record None of the source, which is absent, or the sampler has no __len__: count "
                "them as they come"
            )
            raise errors.InvalidTypeError(f"len() of this {what} is unknown; {reason}.")
        return length

    def batch_rows(self, plan: Plan, base: int) -> tuple[tuple[int, ...], int | None] | None:
        """Returns rows of a full batch and of the last one here, where they are known.

        The first has a number for each of the batches that are stacked in one another, outermost
        first. The second counts records. It is None where every batch is full on every shard, and
        where nobody knows how many there are. Otherwise the last is short on some, and this shard
        may have all records of it, or none.
        """
        stages = plan.stages()
        nest = stages[-1].nest
        if nest is None or self.lanes > 1:
            return None
        if len(stages) > 1:
            return nest, None
        lane = self.lane(0, base, stages[0])
        # The first shard has most of the rest.
        first = dataclasses.replace(self, shard=(0, self.shard[1])).lane(0, base, stages[0])
        return nest, lane.rest if first.rest else None

    def rest(self, stages: list[Stage], base: int) -> int | None:
        """Returns how many records an incomplete last unit has here; None if that is not known."""
        if len(stages) != 1 or not stages[0].counted or self.lanes > 1:
            return None
        return self.lane(0, base, stages[0]).rest

    def outlook(self, position: Position, stages: list[Stage]) -> tuple[bool, int] | None:
        """Returns what is known of the elements around a position, in a stream of known counts.

        Returns:
          Whether the element before it is one that not all shards have in full, and how many follow
          that all of them have; None where that is not known.
        """
        cursor = position.cursor
        counted = all(stage.counted and not stage.local for stage in stages)
        if self.lanes > 1 or not counted or len(stages) != 1 or cursor is None:
            return None
        lane = self.lane(0, position.base, stages[0])
        if lane.full is None:
            return False, _ENDLESS
        done = -(-(int(cursor[0]) - lane.before) // lane.unit)
        return done > lane.full, max(0, lane.full - done)

    def ended(self, stages: list[Stage], position: Position) -> Position:
        """Returns the position of an elastic stream that has ended.

        A shard that had nothing in the last step has behind it what all shards together have.
        """
        end = self.end
        if end is None or any(drop for stage in stages for _, drop in stage.batches):
            return position
        return Position(base=max(end, position.base))

    def global_position(self, position: Position, stages: list[Stage]) -> int:
        """Returns how many positions of the whole stream all shards together have behind them."""
        cursor = position.cursor
        if cursor is None:
            return position.base
        unit = stages[0].unit if stages else 1
        done = int(cursor[0]) - position.base // self.shard[1]
        steps = -(-done // unit)
        reached = position.base + steps * unit * self.shard[1]
        return reached if self.end is None else min(reached, self.end)


def _gives_one_each(stages: list[Stage]) -> bool:
    """Whether every unit of a stream gives one element."""
    return len(stages) == 1 and stages[0].counted
