"""What is the same for all batches of one structure: names of leaves, and where each one goes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from grain_jax._product.agreement import Facts
from grain_jax._product.leaves import Array, detach, is_keys, padded_host, prepare, value_text
from grain_jax._product.placement import Placement, layout, replicated, splits_rows
from grain_jax._product.remainder import Rows
from grain_jax._product.row_states import Shape
from grain_jax._values.errors import InvalidValueError

__all__ = ["Structure"]


class Structure:
    """What is the same for all batches of one structure.

    Args:
      batch: one of them.
      treedef: of it.
      placement: where leaves go.
      rows: how they are counted.

    Attributes:
      names: of the leaves, as messages have them.
    """

    def __init__(self, batch: Any, treedef: Any, placement: Placement, rows: Rows) -> None:
        self.treedef = treedef
        self._axis, self._axes = rows.axis, rows.axes
        with_paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        self.names = ["batch" + jax.tree_util.keystr(path) for path, _ in with_paths]
        self._shardings = placement.broadcast(batch)

    def batch(self, leaves: list[Any]) -> Any:
        """The batch of these leaves."""
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def row_leaves(self, arrays: list[Array | jax.Array | None]) -> list[tuple[str, Shape]]:
        """Name and shape of the leaves with one row for each example."""
        return [(self.names[i], arrays[i].shape) for i in self.row_indices(arrays)]  # type: ignore[union-attr]

    def row_leaf_sharding(self, arrays: list[Array | jax.Array | None]) -> Sharding:
        """The sharding of the first such leaf."""
        return self._shardings[self.row_indices(arrays)[0]]

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
