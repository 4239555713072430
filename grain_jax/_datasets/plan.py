"""Plan: a pipeline as data: where its elements come from, and the steps that act on them.

They come from records that have positions, from an iterable of the user's, or out of other plans,
so that a plan is a tree. Each plan in it is cut into stages; see `stages`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard

from grain_jax._algebra import stacking, steps
from grain_jax._algebra.blocks import Block
from grain_jax._algebra.groupings.base import EPOCH, Grouping
from grain_jax._algebra.measures import MeasureStep
from grain_jax._algebra.threads import Threads
from grain_jax._datasets import iterables
from grain_jax._datasets.schedule import Span
from grain_jax._datasets.shards import Shards
from grain_jax._datasets.stages import HERE, Stage, cut
from grain_jax._values import dataset_options

__all__ = ["Branch", "Grouped", "Plan", "Root", "Upstream", "has_positions", "sent"]


class Root(Protocol):
    """Where the elements of a stream come from.

    Attributes:
      threads: that read; a program gives the same ones to all of its roots.
    """

    threads: Threads

    @property
    def length(self) -> int | None:
        """Number of positions; None if endless or unknown."""

    @property
    def epoch(self) -> int:
        """After how many positions of this shard the records come again."""

    @property
    def batched(self) -> bool:
        """Whether an element is made of several records."""

    @property
    def drops(self) -> list[str]:
        """What may leave positions without an element, but for records that are None."""

    @property
    def has_gaps(self) -> bool:
        """Whether some positions may have no element."""

    @property
    def stacks(self) -> bool:
        """Whether `read_batch` can be expected to answer."""

    @property
    def stacks_by_user(self) -> bool:
        """Whether it would be the user's code that stacks there."""

    @property
    def is_fresh(self) -> bool:
        """Whether each element is a batch that the library has just stacked."""

    @property
    def reads_at_once(self) -> bool:
        """Whether a source answers for many records in one call."""

    @property
    def draws(self) -> str:
        """What may draw from the process-wide generators as elements are read; empty if nothing."""

    def functions(self) -> list[Callable[..., Any]]:
        """Returns the functions of the user's that read."""

    @property
    def asks(self) -> str:
        """What `prepare` asks, of the user's, and that may draw; empty if it asks nothing."""

    def prepare(self, span: Span) -> Any:
        """Returns what `read` needs for the positions of `span`; runs in the trainer, in order.

        It has a `count`, and `part(begin, end)` gives the same for some of the positions.
        """

    def read(self, payload: Any) -> Block:
        """Returns the elements; runs where the work is done."""

    def read_batch(
        self, payload: Any, allocate: stacking.Allocate | None
    ) -> tuple[Any, Block] | None:
        """Returns the elements stacked by the source itself; None if it cannot.

        With them comes a block without data, for their whereabouts.
        """

    def describe(self, position: int) -> str:
        """Says in words which record stands at a position."""

    def key(self, payload: Any, position: int) -> int | None:
        """Returns the key of the record at a position that `payload` is for, if it has one."""

    @property
    def closes(self) -> bool:
        """Whether the source says how it is closed."""

    def close_source(self) -> None:
        """Closes the source, which in a worker is a copy of the user's."""

    def close(self) -> None:
        """Gives back threads and files that reading took."""


@dataclasses.dataclass(frozen=True)
class Upstream:
    """A root without positions: an iterable of the user's, whose iterators keep their own state.

    Attributes:
      dataset: the iterable.
      rereads: whether one that keeps none is read again from its start to come to a position.
    """

    dataset: Any
    rereads: bool = False

    @property
    def title(self) -> str:
        """What messages call it."""
        return iterables.title_of(self.dataset)

    def describe(self, position: int) -> str:
        """Says in words which element stands at a position."""
        return f"position {position}"


def sent(root: Root | Upstream | Grouped) -> Any:
    """Returns what a worker has to know of a root: all but the iterables of the user's."""
    if isinstance(root, Grouped):
        parents = tuple(
            dataclasses.replace(plan, root=sent(plan.root), steps=[]) for plan in root.parents
        )
        return dataclasses.replace(root, parents=parents)
    return dataclasses.replace(root, dataset=None) if isinstance(root, Upstream) else root


@dataclasses.dataclass(frozen=True)
class Grouped:
    """A root made of other streams: a grouping decides which of their elements make an element.

    Attributes:
      parents: the streams.
      grouping: decides.
      step: makes an element of a group; None where a group is one element, which passes as it is.
      title: what error messages call it.
    """

    parents: tuple[Plan, ...]
    grouping: Grouping
    step: steps.Step | None
    title: str

    def describe(self, position: int) -> str:
        """Says in words which record stands at a position, and which part has it."""
        epoch, within = divmod(position, EPOCH)
        inner, part = divmod(within, len(self.parents))
        text: str = self.parents[part].root.describe(inner)
        if len(self.parents) > 1:
            names = getattr(self.grouping, "names", None)
            which = part if names is None else repr(names[part])
            text += f" of dataset {which} of {self.title}"
        return f"{text}, in epoch {epoch}" if epoch else text


def has_positions(root: Root | Upstream | Grouped) -> TypeGuard[Root]:
    """Whether the elements of a root are read by their positions."""
    return not isinstance(root, (Upstream, Grouped))


@dataclasses.dataclass
class Branch:
    """A plan cut into stages, and those that it is made of.

    Attributes:
      plan: which.
      stages: of its own steps; the first one may have no steps.
      parents: those of the plans that its root is made of.
    """

    plan: Plan
    stages: list[Stage]
    parents: tuple[Branch, ...] = ()

    @property
    def is_single(self) -> bool:
        """Whether each element is made of one record."""
        return self.stages[-1].may_skip

    @property
    def first(self) -> Stage | None:
        """The stage that makes the elements of the root; None where they pass as they are."""
        root = self.plan.root
        if isinstance(root, Upstream) or (isinstance(root, Grouped) and root.step is None):
            return None
        return self.stages[0]

    @property
    def behind(self) -> list[Stage]:
        """The stages that act on elements of the root."""
        if self.first is not None:
            return self.stages[1:]
        if isinstance(self.plan.root, Grouped):
            return [stage for stage in self.stages if stage.steps]
        return self.stages

    @property
    def shared(self) -> int | None:
        """Which of the stages behind the root can take an equal share of each of several shards.

        It makes batches, and is the last one that sees more than one element: what comes before it
        each shard does for itself. None if there is no such stage.
        """
        behind = self.behind
        for place in range(len(behind) - 1, -1, -1):
            stage = behind[place]
            if not stage.counted:
                return None
            if stage.grouping is not None:
                return place if stage.is_one_batch else None
        return None

    def beside(self, plan: Plan) -> Branch:
        """Returns the same stages for a plan of which its own is a copy."""
        parents = self.parents
        if isinstance(plan.root, Grouped):
            parents = tuple(map(Branch.beside, parents, plan.root.parents))
        return Branch(plan, self.stages, parents)

    def walk(self) -> Iterator[Branch]:
        """Yields the branches of the tree, those that one is made of before it."""
        for parent in self.parents:
            yield from parent.walk()
        yield self


@dataclasses.dataclass
class Plan:
    """A pipeline, ready to run.

    Attributes:
      root: where elements come from.
      steps: what is done with them, in order.
      local_from: number of the first step that must run in the trainer's process; in a plan that
        others are made of, and that names none, all steps do, unless those behind it do not.
      seed: for the process-wide generators.
      skips: exceptions that leave a record out; none means that all are raised.
      shards: over which shards the whole tree is dealt out, if its description says so.
      options: what holds for all transformations, also of the plans that it is made of.
    """

    root: Root | Upstream | Grouped
    steps: list[steps.Step]
    local_from: int | None = None
    seed: int = 0
    skips: tuple[type[Exception], ...] = ()
    shards: Shards | None = None
    options: dataset_options.DatasetOptions = dataclasses.field(
        default_factory=dataset_options.DatasetOptions
    )

    def stages(self, *, gaps: bool = False) -> list[Stage]:
        """Returns the stages, for a stream whose records are all there or for one with gaps."""
        return self.branch(gaps=gaps).stages

    def branch(self, *, gaps: bool = False) -> Branch:
        """Cuts the plan, and those that it is made of, into stages.

        Args:
          gaps: whether records may be absent.
        """
        somewhere = self.local_from is not None or not any(
            plan.local_from is not None for plan in self.walk()
        )
        local_from = self.local_from if somewhere else HERE
        return _branch(self, gaps, local_from, (), bool(self.skips))

    def walk(self) -> Iterator[Plan]:
        """Yields the plans of the tree, those that one is made of before it."""
        if isinstance(self.root, Grouped):
            for parent in self.root.parents:
                yield from parent.walk()
        yield self

    def leaves(self) -> list[Root | Upstream]:
        """Returns the roots of the tree, from left to right."""
        return [plan.root for plan in self.walk() if not isinstance(plan.root, Grouped)]

    @property
    def is_fresh(self) -> bool:
        """Whether each element is what the library has just stacked, so that nobody else has it."""
        root = self.root if has_positions(self.root) else None
        if not self.steps:
            return root is not None and root.is_fresh
        batching = self.steps[-1].batching
        if batching is None or not batching.stacks:
            return False
        return len(self.steps) > 1 or root is None or not root.stacks_by_user

    def batch_sizes(self) -> tuple[int, ...] | None:
        """Returns the sizes of the batches that an element is made of, innermost first."""
        sizes: list[int] = []
        for step in self.steps:
            if step.counts == "any":
                sizes = []
            elif step.batching is not None:
                sizes.append(step.batching.size)
        return tuple(sizes) or None


def _branch(
    plan: Plan,
    gaps: bool,
    local_from: int | None,
    measures: tuple[MeasureStep, ...],
    skips: bool,
) -> Branch:
    """Cuts a plan.

    Args:
      plan: which.
      gaps: whether records may be absent.
      local_from: number of the first step that must run in the trainer's process, `HERE` for all.
      measures: what groupings behind it have to know of its elements, the nearest one's first.
      skips: whether elements that fail may be left out.
    """
    root = plan.root
    gaps = gaps or skips or (has_positions(root) and root.has_gaps)
    if not isinstance(root, Grouped):
        stages = cut(plan.steps, gaps=gaps, local_from=local_from)
        branch = Branch(plan, stages)
    else:
        measure = root.grouping.measure
        own = () if measure is None else (MeasureStep(measure, root.title),)
        passes = root.step is None and not plan.steps
        parents = tuple(
            _branch(
                parent,
                True,  # whether elements are absent is known as they come
                _placed(parent) if local_from == HERE else None,
                (*own, *measures) if passes else own,
                skips,
            )
            for parent in root.parents
        )
        depth = max(1 + below.stages[-1].depth for below in parents)
        group = None if root.step is None else (root.grouping, root.step)
        single = all(below.is_single for below in parents)
        stages = cut(
            plan.steps,
            gaps=skips and single,
            local_from=local_from,
            group=group,
            depth=depth,
            single=single,
        )
        branch = Branch(plan, stages, parents)
        if passes:
            measures = ()
    stages[-1].measures = measures
    for stage in stages:
        stage.origin, stage.seed = root, plan.seed
    return branch


def _placed(plan: Plan) -> int:
    """Returns where a plan is done of whose elements this process makes others."""
    return HERE if plan.local_from is None else plan.local_from
