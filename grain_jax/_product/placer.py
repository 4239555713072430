"""From a batch on the host to one on devices: what the run-ahead thread does with each element."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from grain_jax._execution.ahead_iterator import SKIP
from grain_jax._product.agreement import Facts
from grain_jax._product.leaves import Array, as_array, detach, padded_host, prepare
from grain_jax._product.placement import (
    Placement,
    check_rows,
    layout,
    replicated,
    row_sharding,
    splits_rows,
)
from grain_jax._product.remainder import Rows
from grain_jax._values.errors import InvalidValueError

__all__ = ["Placer"]

Shape = tuple[int, ...]


def _x64(enabled: bool) -> AbstractContextManager[Any]:
    """Sets JAX's 64-bit types for this thread: the setting of whoever made the stage."""
    # In older versions of JAX it is in `jax.experimental`.
    module: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    return module.enable_x64(enabled)  # type: ignore[no-any-return]


class Placer:
    """Turns batches into pairs of (batch of global arrays, facts to compare over processes).

    Args:
      sharding: as `prefetch_to_device` takes it.
      rows: the rule for batches with another number of rows.
    """

    def __init__(self, sharding: Any, rows: Rows) -> None:
        mask = None
        if rows.rule == "pad" and isinstance(sharding, dict) and rows.mask_key in sharding:
            sharding = dict(sharding)
            mask = Placement(sharding.pop(rows.mask_key)).leaves[0]
        self._placement = placement = Placement(sharding)
        self._mask_sharding = mask
        self._rows = rows
        self._plan: _Plan | None = None
        config: Any = jax.config
        self._x64 = bool(config.jax_enable_x64)
        self.devices = placement.devices
        self.compares = not all(leaf.is_fully_addressable for leaf in placement.leaves)
        if rows.full is not None and not placement.is_tree:
            check_rows(placement.leaves[0], rows.full)

    def __call__(self, batch: Any) -> Any:
        with _x64(self._x64):
            return self._place(batch)

    def _place(self, batch: Any) -> Any:
        plan = self._plan
        leaves, treedef = jax.tree_util.tree_flatten(batch)
        if plan is None or plan.treedef != treedef:
            if self._rows.rule == "pad":
                self._rows.check_maskable(batch)
            plan = self._plan = _Plan(batch, treedef, self._placement)
        arrays = [as_array(leaf, name) for leaf, name in zip(leaves, plan.names, strict=True)]
        row_leaves = plan.row_leaves(arrays)
        verdict = self._rows.judge(row_leaves)
        if verdict == "drop":
            return SKIP
        rows = row_leaves[0][1][0] if row_leaves else 0
        full = self._rows.full if verdict == "pad" else None
        placed = plan.put(leaves, arrays, rows, full)
        result = jax.tree_util.tree_unflatten(treedef, placed)
        if self._rows.rule == "pad":
            result[self._rows.mask_key] = self._mask(plan, arrays, rows)
        return result, (plan.facts(arrays, self._rows) if self.compares else None)

    def _mask(self, plan: _Plan, arrays: list[Array | jax.Array | None], rows: int) -> jax.Array:
        sharding = self._mask_sharding or row_sharding(plan.row_leaf_sharding(arrays))
        assert self._rows.full is not None
        mask = np.arange(self._rows.full) < rows
        mask.flags.writeable = False
        return _put([sharding], [mask], [layout(sharding, 1).global_shape(mask.shape)])[0]


class _Plan:
    """What is the same for all batches of one structure."""

    def __init__(self, batch: Any, treedef: Any, placement: Placement) -> None:
        self.treedef = treedef
        with_paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        self.names = ["batch" + jax.tree_util.keystr(path) for path, _ in with_paths]
        self._shardings = placement.broadcast(batch)

    def row_leaves(self, arrays: list[Array | jax.Array | None]) -> list[tuple[str, Shape]]:
        """Name and shape of the leaves with one row for each example."""
        return [(self.names[i], arrays[i].shape) for i in self._row_indices(arrays)]  # type: ignore[union-attr]

    def row_leaf_sharding(self, arrays: list[Array | jax.Array | None]) -> Sharding:
        """The sharding of the first such leaf."""
        return self._shardings[self._row_indices(arrays)[0]]

    def put(
        self,
        leaves: list[Any],
        arrays: list[Array | jax.Array | None],
        rows: int,
        full: int | None,
    ) -> list[Any]:
        """The leaves, those that JAX can hold on their devices; padded to `full` rows if given."""
        padded = set(self._row_indices(arrays)) if full is not None else ()
        placed: list[Any] = []
        where, shardings, shapes = [], [], []
        for i, array in enumerate(arrays):
            if array is None:
                leaf = leaves[i] if full is None else padded_host(leaves[i], rows, full)
                placed.append(detach(leaf))
                continue
            ready = prepare(array, self.names[i], full if i in padded else None)
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
            "rows": rows.full,
            "leaves": {n: [str(a.dtype), list(a.shape[1:]) if a.ndim else None] for n, a in held},
            "scalars": {n: str(np.asarray(a)) for n, a in held if not a.ndim},
        }

    def _row_indices(self, arrays: list[Array | jax.Array | None]) -> list[int]:
        with_axes = [i for i, array in enumerate(arrays) if array is not None and array.ndim]
        # Where some shardings name axis 0, the others are for leaves that have no rows.
        named = [i for i in with_axes if splits_rows(self._shardings[i])]
        return named or with_axes

    def _global_shape(self, index: int, shape: Shape) -> Shape:
        if not shape:
            return ()
        try:
            return layout(self._shardings[index], len(shape)).global_shape(shape)
        except InvalidValueError as error:
            raise InvalidValueError(f"{self.names[index]} {error}.") from None


def _put(
    shardings: list[Sharding], arrays: list[Array | jax.Array], shapes: list[Shape]
) -> list[jax.Array]:
    make: Any = jax.make_array_from_process_local_data
    if jax.process_count() > 1:
        return [make(*leaf) for leaf in zip(shardings, arrays, shapes, strict=True)]
    # In one call JAX groups the transfers, which it does for one process only.
    return make(shardings, arrays, shapes)  # type: ignore[no-any-return]
