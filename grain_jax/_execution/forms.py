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

__all__ = ["Form", "Leaf", "Over", "layout_of_part", "of", "of_part"]


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


def of(branch: Branch, layout: Layout, base: int) -> Form:
    """Returns the form of a pipeline.

    Args:
      branch: the pipeline.
      layout: shards and lanes.
      base: position from which shards are counted.
    """
    away = [stage for stage in branch.behind if not stage.local]
    local = branch.behind[len(away) :]
    each = away[:-1] if layout.joined > 1 else away
    lanes = tuple(
        _behind(_root(branch, layout, base, index), each) for index in range(layout.streams)
    )
    form = lanes[0]
    if layout.joined > 1:
        form = Over(lanes, away[-1].grouping)
    elif layout.lanes > 1:
        form = Over(lanes, Turns())
    return _behind(form, local)


def _root(branch: Branch, layout: Layout, base: int, index: int) -> Form:
    root = branch.plan.root
    if isinstance(root, Grouped):
        return Over(tuple(map(of_part, branch.parents)), root.grouping)
    return Leaf(root, layout.lane(index, base, None) if has_positions(root) else None)


def of_part(branch: Branch) -> Form:
    """Returns the form of a pipeline of whose elements others are made."""
    return of(branch, layout_of_part(branch), 0)


def layout_of_part(branch: Branch) -> Layout:
    """Returns the layout of such a pipeline: one shard, one lane."""
    return Layout(getattr(branch.plan.root, "length", None))


def _behind(form: Form, stages: list[Stage]) -> Form:
    for stage in stages:
        form = Over((form,), stage.grouping)
    return form
