"""The iterator over a plan: builds the streams, pulls them, and knows where it stands."""

from __future__ import annotations

import dataclasses
import threading
import warnings
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._datasets import iterators
from grain_jax._datasets.outcomes import GapError
from grain_jax._datasets.plan import Branch, Plan, has_positions
from grain_jax._datasets.stages import Stage
from grain_jax._execution import building, cuts, forms, generators, inline, skips, workers
from grain_jax._execution.caching import Caches
from grain_jax._execution.iterables import Own
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.meter import Metered
from grain_jax._execution.parents import Parents
from grain_jax._execution.runs import END, Cursor, Run, Stream, read
from grain_jax._values import errors, faults, forks, options

__all__ = ["Pipeline"]

_MOST = 1 << 30
"""More outputs than a run has."""


class Pipeline:
    """Runs a plan from any position. Not thread-safe, but for `close`.

    Args:
      plan: what to run.
      setup: worker processes and buffers.
      layout: shards and lanes.
    """

    def __init__(self, plan: Plan, setup: iterators.Setup, layout: Layout) -> None:
        policy = setup.options.on_error
        self.account = skips.Account(policy) if isinstance(policy, options.ErrorPolicy) else None
        self.layout = layout
        self.plan = plan
        self._setup = setup
        self.cuts = cuts.Cuts(plan, setup)
        self._executors: tuple[inline.Executor, inline.Executor] | None = None
        self._stream: Stream | None = None
        self._gatherings: MutableMapping[Parents, str] = {}
        self._owns: list[Own] = []
        self._caches = Caches()
        self._run: Run | None = None
        # The last element; its cursor is made when somebody asks.
        self._last: tuple[Any, int] | None = None
        self._renew()
        forks.renew(self)
        self._closed = self._ended = False
        self._left_over = 0
        self._position = layout.first()

    def _renew(self) -> None:
        self._lock = threading.Lock()

    @property
    def position(self) -> Position:
        """Where it stands: behind the last element that it has returned."""
        if self._last is not None:
            places, row = self._last
            self._position = dataclasses.replace(self._position, cursor=places.cursor(row))
            self._last = None
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        self._position, self._last = position, None

    def form(self, position: Position, layout: Layout | None = None) -> forms.Form:
        """Returns how the cursors of a stream are nested that begins at a position."""
        return forms.of(self.branch_of(position), layout or self.layout, position.base)

    def cursor(self, position: Position) -> Cursor:
        """Returns the cursor of a position, of the start in full."""
        return self.form(position).start if position.cursor is None else position.cursor

    @property
    def capacity(self) -> int:
        """How many tasks workers may be ahead by; 0 without workers, or before they start."""
        here, away = self._executors or (None, None)
        return 0 if away is None or away is here else away.capacity

    @property
    def skipped_count(self) -> int:
        """How many records were left out, at the end those after the last element, too."""
        return self._position.skipped + self._left_over

    @property
    def stages(self) -> list[Stage]:
        """The stages that run now."""
        return self.stages_of(self._position)

    def stages_of(self, position: Position) -> list[Stage]:
        """Returns the stages that run from a position on, behind all that is grouped."""
        return self.branch_of(position).stages

    @property
    def branch(self) -> Branch:
        """The pipeline as it is cut now."""
        return self.branch_of(self._position)

    def branch_of(self, position: Position) -> Branch:
        """Returns how the pipeline is cut from a position on."""
        return self.cuts.of(position.has_gaps)

    @property
    def is_elastic(self) -> bool:
        """Whether a position is one number for all shards."""
        return self.would_be_elastic(self.layout) and not self._position.has_gaps

    def would_be_elastic(self, layout: Layout) -> bool:
        """Whether a position is one number for all shards, before any surprise."""
        return has_positions(self.plan.root) and layout.is_elastic(self.cuts.dense.stages)

    def batch_rows(self) -> tuple[tuple[int, ...], int | None] | None:
        """Returns rows of a full batch and of the last one here; see `Layout.batch_rows`."""
        return self.layout.batch_rows(self.plan, self.position.base)

    def keep_rest(self, rule: str) -> None:
        """Says what becomes of a last batch of batches that its records do not fill.

        Args:
          rule: as `prefetch_to_device` takes it for a remainder.

        Raises:
          InvalidValueError: if it is known that there is one that cannot be stacked.
        """
        stage = self.stages[-1]
        if not stage.may_leave_rest:
            return
        if rule == "drop" or (rule == "pad" and stage.nest is not None):
            for branch in (self.cuts.dense, self.cuts.loose):
                branch.stages[-1].rest = rule
            self._forget()
            self._end()
            return
        rest = self.layout.rest(self.stages, self.position.base)
        if rest and stage.nest is None:
            sizes = " and ".join(f"Batch({size})" for size, _ in stage.batches)
            raise errors.InvalidValueError(
                f"the last element of {sizes} has {rest} records of {stage.unit}, so that its "
                "last inner batch is short and does not stack with the others. Write the Batch "
                "steps one behind the other, drop_remainder=True in each of them, or "
                "remainder='drop'."
            )

    def outlook(self) -> tuple[bool, int] | None:
        """Returns what is known of the last element and of those to come; see `Layout.outlook`."""
        if not has_positions(self.plan.root) or self.position.has_gaps:
            return None
        return self.layout.outlook(self.position, self.stages)

    def go_to(self, position: Position, layout: Layout | None = None) -> None:
        """Moves to a position, of a stream dealt out as `layout` says; forgets what is under way.

        Raises:
          ClosedError: after `close`.
        """
        self.check_open()
        self._forget()
        self._left_over = 0
        self.layout = layout or self.layout
        self.position = position
        if self.account is not None:
            self.account.shards = self.layout.joined

    def next(self) -> Any:
        """Returns the next element, or raises StopIteration; an error leaves the position alone."""
        found = self.next_row()
        if found is END:
            raise StopIteration
        run, row = found
        return run.held[row]

    def next_row(self) -> tuple[Run, int] | Any:
        """Returns the next element as a row of a run, or END; an error leaves the position."""
        self.check_open()
        if self._ended:
            return END
        try:
            return self._pull()
        except GapError:
            self._forget()
            self.position = self._loosened()
        except BaseException as error:
            self.check_open()  # another thread may have closed it meanwhile
            if isinstance(error, errors.MemoryLimitError):
                faults.add_note(error, self._most_held())
            self._forget()
            raise
        return self.next_row()

    def _most_held(self) -> str:
        """Says which operator holds most of the elements that wait for others."""
        title, (count, size) = max(
            ((title, gathering.held()) for gathering, title in self._gatherings.items()),
            key=lambda found: found[1][1],
            default=("the pipeline", (0, 0)),
        )
        return f"{title} holds most of it: {count} elements that wait for others, {size} bytes"

    def advance(self) -> None:
        """Gets work going."""
        self.check_open()
        try:
            if not self._ended:
                self._build().advance()
        except BaseException:
            self.check_open()  # another thread may have closed it meanwhile
            raise

    def measure(self) -> None:
        """Has tasks say what they take; workers that are at work already are replaced."""
        if self.cuts.meter is None:
            self.cuts.measure()
            if self._executors is not None:
                self._forget()
                self._end()

    def close(self) -> None:
        """Ends workers and threads; idempotent, from any thread."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Ends workers and threads, until they are needed again."""
        with self._lock:
            executors, self._executors = self._executors, None
            owns, self._owns = self._owns, []
        for own in owns:
            own.close()
        for executor in executors or ():
            executor.close()

    def check_open(self) -> None:
        """Raises after `close`."""
        if self._closed:
            raise errors.ClosedError(
                "this iterator is closed. Make a new one with iter(...); a state taken before "
                "close() restores there."
            ) from None

    def _pull(self) -> tuple[Run, int] | Any:
        run = self._run
        if run is None:
            run = self._run = self._next_run()
            if run is None:
                return END
        row = run.begin
        try:
            _ = run.held[row]  # decoded here: if that fails, the position has not moved
        except Exception as error:
            position = run.places.whereabouts(row, row + 1)[0][0]
            faults.add_note(
                error,
                f"unpickling what a worker sent, of position {position} or some after it. "
                "Return plain data, or objects that unpickle as they are pickled.",
            )
            raise
        skips = run.places.skips.get(row) if self.account is not None else None
        if self.account is not None and skips:
            seen = read(run.places.cursor(row)[0])
            skipped = self.account.add(skips, self._position.skipped, seen)
            self._position = dataclasses.replace(self._position, skipped=skipped)
        run.begin += 1
        if not len(run):
            self._run = None  # the memory of its outputs belongs to whoever takes them
        self._last = run.places, row
        return run, row

    def _next_run(self) -> Run | None:
        """Returns the next run, or None at the end."""
        stream = self._build()
        run = stream.pull(_MOST, True)
        if run is not END:
            pulled: Run = run
            return pulled
        if self.account is not None and stream.left_over:
            # They are behind the last element: a state stands before them.
            skipped = self.account.add(stream.left_over, self._position.skipped, self._seen())
            self._left_over, stream.left_over = skipped - self._position.skipped, []
        if self.is_elastic:
            self.position = self.layout.ended(self.stages, self.position)
        # The iterator may be kept for long, and is only used again where it is set back.
        self._ended, self._stream, self._run = True, None, None
        self._gatherings = {}
        self._end()
        return None

    def _seen(self) -> int:
        """Returns how many records of this shard are delivered."""
        return read(self.cursor(self.position)[0])

    def _loosened(self) -> Position:
        """Returns the position in the stages for streams with gaps; so far there were none.

        There the first stage is cut in two, before the step that counts.
        """
        position, unit = self.position, self.cuts.dense.stages[0].unit

        def loosened(cursor: Cursor) -> Cursor:
            place, since = cursor
            if isinstance(place, int):
                return (((place, 0),), (place // unit,) * 2, 0), since
            cursors, kept, groups = place
            return (tuple(map(loosened, cursors)), kept, groups), since

        cursor = loosened(self.cursor(position))
        return dataclasses.replace(position, has_gaps=True, cursor=cursor)

    def _forget(self) -> None:
        self._stream, self._run, self._ended = None, None, False
        self._gatherings = {}
        owns, self._owns = self._owns, []
        for own in owns:
            own.close()
        if any(executor.is_broken for executor in self._executors or ()):
            self._end()  # what could not be loaded is loaded anew
        for executor in self._executors or ():
            executor.cancel()

    def _build(self) -> Stream:
        """Makes the executors once, and the stream wherever the position says."""
        if self._executors is None:
            ignored = self._setup.options.ignore_globals
            generators.check(self.cuts.leaves, self.cuts.stages, self.cuts.is_away, ignored)
            here: inline.Executor = inline.Inline(self.cuts.program, self._ahead())
            away = workers.executor(self.cuts.program, self._setup) if self._is_remote() else here
            if (meter := self.cuts.meter) is not None:
                inside, here = here, Metered(here, meter)
                away = here if away is inside else Metered(away, meter)
            if away is not here:
                self._caches = Caches()  # inputs of tasks are those of one set of workers
            with self._lock:
                self._executors = here, away
            if self._closed:
                self.close()
                self.check_open()
        if self._stream is None:
            self._stream = self._whole()
        return self._stream

    def _ahead(self) -> int:
        """Returns for how many units records are read ahead in this process, if the user asks."""
        reading = getattr(self.cuts.leaves[0], "read_options", options.ReadOptions())
        if self._setup.options.num_workers or not reading.num_threads:
            return 0
        if reading.prefetch_buffer_size is None:
            return 2
        return -(-reading.prefetch_buffer_size // self.stages[0].unit)

    def _is_remote(self) -> bool:
        if self._setup.options.num_workers and not self.cuts.has_work:
            warnings.warn(
                "nothing stands between the iterable that is read in this process and "
                "mp_prefetch, so that there is no work for workers, and none are started. Write "
                "mp_prefetch behind the steps that they shall do.",
                stacklevel=4,
            )
            return False
        return self._setup.options.num_workers > 0

    def _whole(self) -> Stream:
        position = self.position
        assert self._executors is not None
        builder = building.Builder(
            self.branch_of(position), self.layout, position.base, *self._executors
        )
        this = weakref.WeakMethod(self._overdue)  # the streams refer to the builder
        builder.overdue = lambda begin: this()(begin)  # type: ignore[misc]
        builder.options = self.plan.options
        self._gatherings, self._owns = builder.gatherings, builder.owns
        builder.caches, builder.meter = self._caches, self.cuts.meter
        # What draws here is seeded for its elements, and the iterable may draw, too.
        builder.is_ahead = not any(stage.local and stage.seeded for stage in self.cuts.stages)
        return builder.whole(self.cursor(position))

    def _overdue(self, begin: int) -> Callable[[int, int, Skip], None] | None:
        """Judges what a lane leaves out, from an ordinal of it on; other lanes are as they were."""
        account = self.account
        if account is None:
            return None
        before, seen = self._position.skipped, self._seen() - begin
        return lambda count, ordinal, last: account.check(before + count, seen + ordinal, last)
