"""Forms: how the cursors of a pipeline are nested, and what the numbers in them can be.

A pipeline starts from the cursor that its form makes, and a state is read along the form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from grain_jax._algebra.groupings.base import Grouping
from grain_jax._algebra.groupings.turns import Turns
from grain_jax._datasets.plan import Branch, Grouped, Root, Upstream, has_positions
from grain_jax._datasets.schedule import Lane
from grain_jax._datasets.stages import Stage
from grain_jax._execution.layout import Layout
from grain_jax._execution.runs import Cursor

__all__ = ["Form", "Leaf", "Over", "begun", "layout_of_part", "of", "of_part", "split"]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Records by their positions, or a user's own iterator.

    Attributes:
      root: what is read.
      lane: which positions; of an iterator nothing is known.
    """

    root: Root | Upstream
    lane: Lane | None

    @property
    def start(self) -> Cursor:
        """The cursor before the first element."""
        return (0, None) if self.lane is None else (self.lane.before, 0)

    def leaves(self) -> Iterator[Leaf]:
        """Yields itself."""
        yield self


@dataclasses.dataclass(frozen=True)
class Over:
    """A stream made of others.

    Attributes:
      parents: their forms.
      grouping: what groups their elements; None where each of one stream is by itself.
    """

    parents: tuple[Form, ...]
    grouping: Grouping | None

    @property
    def first(self) -> tuple[int, ...]:
        """Its own numbers at the start."""
        return (0,) if self.grouping is None else self.grouping.first(len(self.parents))

    @property
    def start(self) -> Cursor:
        """The cursor before the first element."""
        return (tuple(parent.start for parent in self.parents), self.first, 0), 0

    def leaves(self) -> Iterator[Leaf]:
        """Yields all leaves, from left to right."""
        for parent in self.parents:
            yield from parent.leaves()


Form = Leaf | Over


def begun(form: Form, read: Iterator[int], turn: int = 0) -> Cursor:
    """Returns the cursor with so many records read in each of the leaves, and nothing since.

    Args:
      form: of the stream.
      read: the records of each leaf, from left to right.
      turn: which of several lanes is next.
    """
    if isinstance(form, Leaf):
        _, since = form.start
        return next(read), since
    (_, kept, groups), since = form.start
    if isinstance(form.grouping, Turns):
        kept = (turn,)
    return (tuple(begun(parent, read, turn) for parent in form.parents), kept, groups), since


def of(branch: Branch, layout: Layout, base: int) -> Form:
    """Returns the form of a pipeline.

    Args:
      branch: the pipeline.
      layout: shards and lanes.
      base: position from which shards are counted.
    """
    each, behind = split(branch, layout)
    lanes = tuple(
        _behind(_root(branch, layout, base, index), each) for index in range(layout.streams)
    )
    form = lanes[0]
    if layout.joined > 1:
        shared, *behind = behind
        form = Over(lanes, shared.grouping)
    elif layout.lanes > 1:
        form = Over(lanes, Turns())
    return _behind(form, behind)


def split(branch: Branch, layout: Layout) -> tuple[list[Stage], list[Stage]]:
    """Returns the stages behind the root that each lane or joined shard has, and those after them.

    The first that comes after joined shards is that which has a share of each.
    """
    stages = branch.behind
    place = sum(not stage.local for stage in stages)
    if layout.joined > 1:
        assert branch.shared is not None
        place = branch.shared
    return stages[:place], stages[place:]


def _root(branch: Branch, layout: Layout, base: int, index: int) -> Form:
    root = branch.plan.root
    if isinstance(root, Grouped):
        layout = layout.of_stream(index)
        parts = tuple(of_part(parent, layout) for parent in branch.parents)
        return Over(parts, root.grouping.of_shard(layout.shards))
    return Leaf(root, layout.lane(index, base, None) if has_positions(root) else None)


def of_part(branch: Branch, layout: Layout) -> Form:
    """Returns the form of a pipeline of whose elements others are made, dealt out as these are."""
    return of(branch, layout_of_part(branch, layout), 0)


def layout_of_part(branch: Branch, layout: Layout) -> Layout:
    """Returns the layout of such a pipeline: one lane of the same shard."""
    return dataclasses.replace(layout, length=getattr(branch.plan.root, "length", None))


def _behind(form: Form, stages: list[Stage]) -> Form:
    for stage in stages:
        form = Over((form,), stage.grouping)
    return form
