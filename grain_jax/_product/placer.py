"""From a batch on the host to one on devices: what the run-ahead thread does with each element."""

from __future__ import annotations

import dataclasses
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
from grain_jax._product.leaves import Array, as_array, detach, filled, padded_host, prepare
from grain_jax._product.placement import (
    Placement,
    check_rows,
    layout,
    replicated,
    row_sharding,
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
      left: how many full batches the source is known to have after it.
      host: the leaves as they came, where a process without a batch may ask for those without rows.
      is_padding: whether it was made for want of a batch.
    """

    batch: Any
    facts: Facts | None = None
    number: int = 0
    left: int = 0
    host: list[Any] | None = None
    is_padding: bool = False


class Placer:
    """Puts batches on their devices.

    Args:
      sharding: as `prefetch_to_device` takes it.
      rows: the rule for batches with another number of rows.

    Attributes:
      outlook: called after each element of the source; says whether the step that it belongs to is
        short on any process, and how many full ones follow; None if that is not known.
      devices: all devices that batches go to, on every process.
      compares: whether they belong to several processes.
      made: how many batches were placed.
      is_fresh: whether nobody else has a hold on the memory of the batches; see `Lent`.
    """

    def __init__(self, sharding: Any, rows: Rows) -> None:
        mask = None
        if rows.rule == "pad" and isinstance(sharding, dict) and rows.mask_key in sharding:
            sharding = dict(sharding)
            mask = Placement(sharding.pop(rows.mask_key)).leaves[0]
        self._placement = placement = Placement(sharding)
        self._mask_sharding = mask
        self._rows = rows
        self.outlook: Callable[[], tuple[bool, int] | None] = lambda: None
        self._plan: _Plan | None = None
        config: Any = jax.config
        self._x64 = bool(config.jax_enable_x64)
        self.devices = placement.devices
        self.compares = not all(leaf.is_fully_addressable for leaf in placement.leaves)
        self.made = 0
        self.is_fresh = False
        if rows.described is not None and not placement.is_tree:
            check_rows(placement.leaves[0], rows.described[0][rows.axis], rows.axis)

    def __call__(self, batch: Any) -> Any:
        """Returns the `Placed` batch, or `SKIP`."""
        uneven, left = self.outlook() or (False, 0)
        with _x64(self._x64):
            placed = self._place(batch, uneven, left)
        self.made += placed is not SKIP
        return placed

    def skeleton(self, placed: Placed) -> dict[str, Any]:
        """Returns what another process needs to make padding beside this batch, as JSON."""
        plan, full = self._plan, self._rows.full
        assert plan is not None
        assert placed.host is not None
        assert full is not None
        lead = plan.lead([as_array(leaf, "") for leaf in placed.host], placed.host)
        batch = jax.tree_util.tree_unflatten(plan.treedef, placed.host)
        return {**skeleton.describe(batch, placed.host, lead), "full": list(full)}

    def padding(self, bones: dict[str, Any]) -> Placed:
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
            placed: Placed = self._place(batch, True, 0)
        return dataclasses.replace(placed, is_padding=True)

    def _place(self, batch: Any, uneven: bool, left: int) -> Any:
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
        result = jax.tree_util.tree_unflatten(
            treedef, plan.put(leaves, arrays, short, full, self.is_fresh)
        )
        if self._rows.rule == "pad":
            result[self._rows.mask_key] = self._mask(plan, arrays, short, count)
        if not self.compares:
            return Placed(result)
        host = leaves if self._rows.rule == "pad" else None
        return Placed(result, plan.facts(arrays, self._rows), self.made + 1, left, host)

    def _mask(
        self,
        plan: _Plan,
        arrays: list[Array | jax.Array | None],
        short: Shape,
        count: int | None,
    ) -> jax.Array:
        axis, full = self._rows.axis, self._rows.full
        assert full is not None
        sharding = self._mask_sharding or row_sharding(
            plan.row_leaf_sharding(arrays), self._rows.axes - 1
        )
        mask = np.zeros(full, bool)
        if count is None:
            mask[tuple(map(slice, short))] = True
        else:
            mask.reshape(-1)[:count] = True
        mask.flags.writeable = False
        shape = layout(sharding, mask.ndim).global_shape(mask.shape, axis)
        return _put([sharding], [mask], [shape])[0]


class _Plan:
    """What is the same for all batches of one structure."""

    def __init__(self, batch: Any, treedef: Any, placement: Placement, rows: Rows) -> None:
        self.treedef = treedef
        self._axis, self._axes = rows.axis, rows.axes
        with_paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        self.names = ["batch" + jax.tree_util.keystr(path) for path, _ in with_paths]
        self._shardings = placement.broadcast(batch)

    def row_leaves(self, arrays: list[Array | jax.Array | None]) -> list[tuple[str, Shape]]:
        """Name and shape of the leaves with one row for each example."""
        return [(self.names[i], arrays[i].shape) for i in self.row_indices(arrays)]  # type: ignore[union-attr]

    def row_leaf_sharding(self, arrays: list[Array | jax.Array | None]) -> Sharding:
        """The sharding of the first such leaf."""
        return self._shardings[self.row_indices(arrays)[0]]

    def put(
        self,
        leaves: list[Any],
        arrays: list[Array | jax.Array | None],
        short: Shape,
        full: Shape | None,
        is_fresh: bool,
    ) -> list[Any]:
        """The leaves, those that JAX can hold on their devices; padded to `full` if given."""
        padded = set(self.row_indices(arrays)) if full is not None else ()
        placed: list[Any] = []
        where, shardings, shapes = [], [], []
        for i, array in enumerate(arrays):
            if array is None:
                leaf = leaves[i] if full is None else padded_host(leaves[i], short, full)
                placed.append(detach(leaf, is_fresh=is_fresh))
                continue
            lead = full if i in padded else None
            ready = prepare(array, self.names[i], lead, is_fresh=is_fresh)
            sharding = self._shardings[i]
            where.append(i)
            shardings.append(sharding if ready.ndim else replicated(sharding))
            shapes.append(self._global_shape(i, ready.shape))
            placed.append(ready)
        for i, array in zip(
            where, _put(shardings, [placed[i] for i in where], shapes), strict=True
        ):
            placed[i] = array
        return placed

    def facts(self, arrays: list[Array | jax.Array | None], rows: Rows) -> Facts:
        """What the other processes should have alike."""
        held = [(n, a) for n, a in zip(self.names, arrays, strict=True) if a is not None]
        return {
            "rows": rows.full and rows.text(rows.full),
            "leaves": {
                n: [str(a.dtype), list(a.shape[self._axes :]) if a.ndim else None] for n, a in held
            },
            "scalars": {n: str(np.asarray(a)) for n, a in held if not a.ndim},
        }

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
        return [make(*leaf) for leaf in zip(shardings, arrays, shapes, strict=True)]
    # In one call JAX groups the transfers, which it does for one process only.
    return make(shardings, arrays, shapes)  # type: ignore[no-any-return]
