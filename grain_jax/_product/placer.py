"""From a batch on the host to one on devices: what the run-ahead thread does with each element."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from grain_jax._algebra.blocks import Rest
from grain_jax._execution.ahead_iterator import SKIP
from grain_jax._product import skeleton
from grain_jax._product.agreement import Facts
from grain_jax._product.leaves import (
    Array,
    as_array,
    detach,
    digest,
    filled,
    is_keys,
    padded_host,
    prepare,
    value_text,
)
from grain_jax._product.lockstep import Verdict
from grain_jax._product.masks import Masks
from grain_jax._product.placement import (
    Placement,
    check_rows,
    described,
    held_rows,
    layout,
    replicated,
    splits_rows,
)
from grain_jax._product.remainder import Rows
from grain_jax._product.row_states import Shape
from grain_jax._values.errors import InvalidValueError

__all__ = ["Placed", "Placer"]


def _x64(enabled: bool) -> AbstractContextManager[Any]:
    """Sets JAX's 64-bit types for this thread: the setting of whoever made the stage."""
    # In older versions of JAX it is in `jax.experimental`.
    module: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    return module.enable_x64(enabled)  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Placed:
    """A batch on its devices.

    Attributes:
      batch: the tree that users get.
      facts: to compare over processes; None where nobody compares.
      number: which of those that were placed.
      left: how many full batches of the same shapes the source is known to have after it.
      mask: which of its rows are real, where the others have to know; see `Masks.told`.
      host: the leaves as they were on the host, in memory that nobody writes to, where another
        process may need some of them, or they may have to be placed anew.
      is_padding: whether it was made for want of a batch.
      kept: a JSON value that processes with the same rows have alike; None where there are none.
    """

    batch: Any
    facts: Facts | None = None
    number: int = 0
    left: int = 0
    mask: Any = None
    host: list[Any] | None = None
    is_padding: bool = False
    kept: Any = None


class Placer:
    """Puts batches on their devices.

    Args:
      sharding: as `prefetch_to_device` takes it.
      rows: the rule for batches with another number of rows.
      pads_rows: whether rows that differ in shape over processes are padded to the larger.

    Attributes:
      outlook: called after each element of the source; says whether the step that it belongs to is
        short on any process, and how many full ones follow; None if that is not known.
      tally: called likewise; how many records an error policy has left out, None without one.
      devices: all devices that batches go to, on every process.
      compares: whether they belong to several processes.
      is_fresh: whether nobody else has a hold on the memory of the batches; see `Lent`.
    """

    def __init__(self, sharding: Any, rows: Rows, *, pads_rows: bool = False) -> None:
        mask = None
        if rows.rule == "pad" and isinstance(sharding, dict) and rows.mask_key in sharding:
            sharding = dict(sharding)
            mask = Placement(sharding.pop(rows.mask_key)).leaves[0]
        self._placement = placement = Placement(sharding)
        self._mask_sharding = mask
        self._masks = Masks(mask, rows)
        self._rows = rows
        self._pads_rows = pads_rows
        self.outlook: Callable[[], tuple[bool, int] | None] = lambda: None
        self.tally: Callable[[], int | None] = lambda: None
        self._tallied: int | None = None
        self._plan: _Plan | None = None
        config: Any = jax.config
        self._x64 = bool(config.jax_enable_x64)
        self.devices = placement.devices
        self.compares = not all(leaf.is_fully_addressable for leaf in placement.leaves)
        self._made = 0
        # What the last batch was like, and the numbers of those that were unlike the one before.
        self._looks: Any = None
        self._changes: deque[int] = deque()
        self._varies = False
        self.is_fresh = False
        if rows.described is not None and not placement.is_tree:
            check_rows(placement.leaves[0], rows.described[0][rows.axis], rows.axis)

    @property
    def row_sharding(self) -> Sharding:
        """The sharding that says which process has which rows."""
        return self._placement.row_sharding(self._rows.axis)

    @functools.cached_property
    def _shares_rows(self) -> bool:
        """Whether several processes hold the same rows, which then have to be equal."""
        held = held_rows(self.row_sharding, self._rows.axis)
        return len(set(held.values())) < len(held)

    def described(self) -> dict[str, str]:
        """Returns where leaves go, in words that are the same on all processes."""
        leaves = zip(self._placement.names, self._placement.leaves, strict=True)
        named = {f"sharding{name}": described(leaf) for name, leaf in leaves}
        if self._mask_sharding is not None:
            named[f"sharding[{self._rows.mask_key!r}]"] = described(self._mask_sharding)
        return named

    def __call__(self, batch: Any) -> Any:
        """Returns the `Placed` batch, or `SKIP`."""
        uneven, left = self.outlook() or (False, 0)
        with _x64(self._x64):
            placed = self._place(batch, uneven)
        if placed is SKIP or not self.compares:
            return placed
        looks = placed.facts, placed.mask, placed.kept
        if self._looks is not None and looks != self._looks:
            self._changes.append(self._made + 1)
            self._varies = True
        self._looks = looks
        # Only what stacks records, and nothing behind it, has one shape for all batches.
        is_fixed = self._rows.described is not None and not self._pads_rows and not self._varies
        self._made += 1
        return dataclasses.replace(placed, number=self._made, left=left if is_fixed else 0)

    def sure(self, placed: Placed) -> int:
        """Returns how many batches with equal facts and mask are sure to follow this one."""
        made, changes = self._made, self._changes
        while changes and changes[0] <= placed.number:
            changes.popleft()
        until = changes[0] if changes else made + 1
        return max(until - placed.number - 1, placed.left)

    def finish(self, placed: Placed, verdict: Verdict) -> Any:
        """Returns the batch to hand out, after what all processes said of theirs."""
        batch = placed.batch
        if verdict.shapes is not None:
            batch = self._enlarged(placed, verdict.shapes)
        return self._with_mask(batch, placed.mask, verdict)

    def skeleton(self, placed: Placed, verdict: Verdict) -> dict[str, Any]:
        """Returns what another process needs to make padding beside this batch, as JSON."""
        plan, full = self._plan, self._rows.full
        assert plan is not None
        assert placed.host is not None
        assert full is not None
        arrays = [as_array(leaf, "") for leaf in placed.host]
        lead = plan.lead(arrays, placed.host)
        batch = jax.tree_util.tree_unflatten(plan.treedef, placed.host)
        rows = [(verdict.shapes or {}).get(name) for name in plan.names]
        return {**skeleton.describe(batch, placed.host, lead, rows), "full": list(full)}

    def padding(self, bones: dict[str, Any], verdict: Verdict) -> Placed:
        """Returns a batch of padding, made after the `skeleton` of another process.

        Raises:
          InvalidValueError: if this process has had no batch and cannot make one of this structure.
        """
        self._rows.full = self._rows.full or tuple(bones["full"])
        leaves = skeleton.leaves_of(bones, len(self._rows.full))
        if self._plan is not None:
            batch = jax.tree_util.tree_unflatten(self._plan.treedef, leaves)
        else:
            batch = skeleton.tree_of(bones, leaves)
        if batch is None:
            raise InvalidValueError(
                "this process has run out of batches before it had one, and so cannot make padding"
                " of the same structure. Give each process a share with a batch in it, or make the"
                " batch of dicts, lists and tuples."
            )
        with _x64(self._x64):
            placed: Placed = self._place(batch, True)
        batch = self._with_mask(placed.batch, placed.mask, verdict)
        return dataclasses.replace(placed, batch=batch, is_padding=True)

    def _place(self, batch: Any, uneven: bool) -> Any:
        plan = self._plan
        count = None
        if isinstance(batch, Rest):
            if self._rows.rule == "drop":
                return SKIP
            count, batch = batch.count, filled(batch)
        leaves, treedef = jax.tree_util.tree_flatten(batch)
        if plan is None or plan.treedef != treedef:
            if self._rows.rule == "pad":
                self._rows.check_maskable(batch)
            plan = self._plan = _Plan(batch, treedef, self._placement, self._rows)
        arrays = [as_array(leaf, name) for leaf, name in zip(leaves, plan.names, strict=True)]
        row_leaves = plan.row_leaves(arrays)
        verdict = self._rows.judge(row_leaves, uneven)
        if verdict == "drop":
            return SKIP
        axes = self._rows.axes
        short = row_leaves[0][1][:axes] if row_leaves else ()
        full = self._rows.full if verdict == "pad" else None
        ready = plan.prepared(leaves, arrays, short, full, self.is_fresh)
        result = jax.tree_util.tree_unflatten(treedef, plan.put(ready, arrays))
        told = real = None
        if self._rows.rule == "pad":
            sharding = plan.row_leaf_sharding(arrays)
            told = real = self._masks.told(short, count)
            if self.compares and self._masks.is_spread(sharding):
                # Until the others have said what they have: of the right kind, for specs.
                result[self._rows.mask_key] = self._masks.whole({}, sharding)
            else:
                result[self._rows.mask_key] = self._masks.place(told, sharding)
                told = None
        if not self.compares:
            return Placed(result)
        host = ready if self._rows.rule == "pad" or self._pads_rows else None
        kept = self._kept(real, arrays) if self._shares_rows else None
        return Placed(result, plan.facts(arrays, self._rows), mask=told, host=host, kept=kept)

    def _kept(self, real: Any, arrays: list[Array | jax.Array | None]) -> dict[str, Any]:
        """What processes with the same rows have alike, and would not notice otherwise.

        Where records were left out, equal numbers of them may be others: contents tell.
        """
        count, content = self.tally(), ""
        if count != self._tallied:
            self._tallied, content = count, digest(arrays)
        return {"rows": real, "left out": count, "content": content}

    def _with_mask(self, batch: Any, told: Any, verdict: Verdict) -> Any:
        if told is None:
            return batch
        assert self._plan is not None
        sharding = self._plan.row_leaf_sharding(None)
        return {**batch, self._rows.mask_key: self._masks.whole(verdict.masks, sharding)}

    def _enlarged(self, placed: Placed, shapes: dict[str, list[int]]) -> Any:
        """Returns the batch with rows of these shapes, zeros where they are larger."""
        plan, host = self._plan, placed.host
        assert plan is not None
        assert host is not None
        with _x64(self._x64):
            larger = [
                prepare(leaf, name, (*leaf.shape[: self._rows.axes], *shapes[name]), is_fresh=True)
                if name in shapes
                else leaf
                for leaf, name in zip(host, plan.names, strict=True)
            ]
            arrays = [as_array(leaf, name) for leaf, name in zip(larger, plan.names, strict=True)]
            batch = jax.tree_util.tree_unflatten(plan.treedef, plan.put(larger, arrays))
        if self._rows.rule == "pad":
            batch[self._rows.mask_key] = placed.batch[self._rows.mask_key]
        return batch


class _Plan:
    """What is the same for all batches of one structure."""

    def __init__(self, batch: Any, treedef: Any, placement: Placement, rows: Rows) -> None:
        self.treedef = treedef
        self._axis, self._axes = rows.axis, rows.axes
        with_paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        self.names = ["batch" + jax.tree_util.keystr(path) for path, _ in with_paths]
        self._shardings = placement.broadcast(batch)
        self._row_leaf = 0

    def row_leaves(self, arrays: list[Array | jax.Array | None]) -> list[tuple[str, Shape]]:
        """Name and shape of the leaves with one row for each example."""
        return [(self.names[i], arrays[i].shape) for i in self.row_indices(arrays)]  # type: ignore[union-attr]

    def row_leaf_sharding(self, arrays: list[Array | jax.Array | None] | None) -> Sharding:
        """The sharding of the first such leaf; None for the arrays asks for that of the last."""
        if arrays is not None:
            self._row_leaf = self.row_indices(arrays)[0]
        return self._shardings[self._row_leaf]

    def prepared(
        self,
        leaves: list[Any],
        arrays: list[Array | jax.Array | None],
        short: Shape,
        full: Shape | None,
        is_fresh: bool,
    ) -> list[Any]:
        """The leaves as they go to devices, or stay; padded to `full` if given."""
        padded = set(self.row_indices(arrays)) if full is not None else ()
        ready: list[Any] = []
        for i, array in enumerate(arrays):
            if array is None:
                leaf = leaves[i] if full is None else padded_host(leaves[i], short, full)
                ready.append(detach(leaf, is_fresh=is_fresh))
                continue
            lead = full if i in padded else None
            ready.append(prepare(array, self.names[i], lead, is_fresh=is_fresh))
        return ready

    def put(self, ready: list[Any], arrays: list[Array | jax.Array | None]) -> list[Any]:
        """The prepared leaves, those that JAX can hold on their devices."""
        placed = list(ready)
        where = [i for i, array in enumerate(arrays) if array is not None]
        shardings = [
            self._shardings[i] if ready[i].ndim else replicated(self._shardings[i]) for i in where
        ]
        shapes = [self._global_shape(i, ready[i].shape) for i in where]
        for i, array in zip(where, _put(shardings, [ready[i] for i in where], shapes), strict=True):
            placed[i] = array
        return placed

    def facts(self, arrays: list[Array | jax.Array | None], rows: Rows) -> Facts:
        """What the other processes should have alike."""
        # Without a rule no two leaves need have as many rows.
        with_rows = set() if rows.rule is None else set(self.row_indices(arrays))
        leaves: dict[str, Any] = {}
        scalars: dict[str, str] = {}
        for i, (name, array) in enumerate(zip(self.names, arrays, strict=True)):
            if array is None:
                continue
            has_rows = i in with_rows
            shape = list(array.shape[self._axes :] if has_rows else array.shape)
            leaves[name] = [str(array.dtype), shape if array.ndim else None, has_rows]
            if not array.ndim:
                scalars[name] = value_text(array)
        lead = rows.full and rows.text(rows.full)
        return {"rows": lead, "leaves": leaves, "scalars": scalars}

    def row_indices(self, arrays: list[Array | jax.Array | None]) -> list[int]:
        """Which leaves have rows."""
        axis = self._axis
        with_axis = [i for i, array in enumerate(arrays) if array is not None and array.ndim > axis]
        # Where some shardings name the axis, the others are for leaves that have no rows.
        named = [i for i in with_axis if splits_rows(self._shardings[i], axis)]
        return named or with_axis

    def lead(self, arrays: list[Array | jax.Array | None], leaves: list[Any]) -> list[int | None]:
        """How many leading axes of each leaf number its rows; None where it has no rows."""
        axes = self._axes
        rows = self.row_indices(arrays)
        short = leaves[rows[0]].shape[:axes]
        # Text has rows, too, where JAX cannot see them.
        return [
            axes
            if i in rows or (array is None and getattr(leaf, "shape", ())[:axes] == short)
            else None
            for i, (array, leaf) in enumerate(zip(arrays, leaves, strict=True))
        ]

    def _global_shape(self, index: int, shape: Shape) -> Shape:
        if not shape:
            return ()
        try:
            cut = layout(self._shardings[index], len(shape))
            result = cut.global_shape(shape, self._axis)
        except InvalidValueError as error:
            raise InvalidValueError(f"{self.names[index]} {error}.") from None
        if len(shape) <= self._axis and cut.is_spread:
            raise InvalidValueError(
                f"{self.names[index]} has shape {shape}, without the axis {self._axis} along which"
                " the rows of the processes are put together, and its sharding spreads it over"
                " processes. Give it that axis, or a sharding of its own: PartitionSpec() where it"
                " is the same on all processes."
            )
        return result


def _put(
    shardings: list[Sharding], arrays: list[Array | jax.Array], shapes: list[Shape]
) -> list[jax.Array]:
    make: Any = jax.make_array_from_process_local_data
    if jax.process_count() > 1:
        return [_put_one(*leaf) for leaf in zip(shardings, arrays, shapes, strict=True)]
    # In one call JAX groups the transfers, which it does for one process only.
    return make(shardings, arrays, shapes)  # type: ignore[no-any-return]


def _put_one(sharding: Sharding, array: Array | jax.Array, shape: Shape) -> jax.Array:
    make: Any = jax.make_array_from_process_local_data
    if not is_keys(array):
        return make(sharding, array, shape)  # type: ignore[no-any-return]
    # JAX puts together arrays of several processes on the host, where there are no typed keys.
    data = np.asarray(jax.random.key_data(array))
    words = make(sharding, data, (*shape, *data.shape[array.ndim :]))
    keys: jax.Array = jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))
    return keys
