"""From a batch on the host to one on devices: what the run-ahead thread does with each element."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import Sharding

from grain_jax._algebra.blocks import Rest
from grain_jax._execution.producing import SKIP
from grain_jax._product import skeleton
from grain_jax._product.agreement import Facts
from grain_jax._product.leaves import (
    Array,
    as_array,
    digest,
    filled,
    prepare,
)
from grain_jax._product.lockstep import Verdict
from grain_jax._product.masks import Masks
from grain_jax._product.placement import (
    Placement,
    check_rows,
    described,
    held_rows,
)
from grain_jax._product.remainder import Rows
from grain_jax._product.structure import Structure

__all__ = ["Placed", "Placer"]


# Where batches have several structures in turn, each is looked at once.
_KEPT = 8


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
      structure: of the batch as it came.
      rows_sharding: that of the rows; None where there is no mask.
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
    structure: Structure
    rows_sharding: Sharding | None = None
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
      is_fresh: whether nobody else has a hold on the memory of the batches; see `Owned`.
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
        # Of batches that were placed, the last of which may be later than the one handed out.
        self._structures: list[Structure] = []
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
        return self._with_mask(placed, batch, verdict)

    def skeleton(self, placed: Placed, verdict: Verdict) -> dict[str, Any]:
        """Returns what another process needs to make padding beside this batch, as JSON."""
        structure, host, full = placed.structure, placed.host, self._rows.full
        assert host is not None
        assert full is not None
        arrays = [as_array(leaf, "") for leaf in host]
        lead = structure.lead(arrays, host)
        rows = [(verdict.shapes or {}).get(name) for name in structure.names]
        bones = skeleton.describe(structure.batch(host), host, lead, rows)
        return {**bones, "full": list(full)}

    def padding(self, bones: dict[str, Any], verdict: Verdict) -> Placed:
        """Returns a batch of padding, made after the `skeleton` of another process.

        Raises:
          InvalidValueError: if this process has had no batch of this structure and cannot make one.
        """
        self._rows.full = self._rows.full or tuple(bones["full"])
        leaves = skeleton.leaves_of(bones, len(self._rows.full))
        known = [structure.treedef for structure in self._structures]
        with _x64(self._x64):
            placed: Placed = self._place(skeleton.tree_of(bones, leaves, known), True)
        return dataclasses.replace(
            placed, batch=self._with_mask(placed, placed.batch, verdict), is_padding=True
        )

    def _place(self, batch: Any, uneven: bool) -> Any:
        count = None
        if isinstance(batch, Rest):
            if self._rows.rule == "drop":
                return SKIP
            count, batch = batch.count, filled(batch)
        leaves, structure = self._flattened(batch)
        arrays = [as_array(leaf, name) for leaf, name in zip(leaves, structure.names, strict=True)]
        row_leaves = structure.row_leaves(arrays)
        verdict = self._rows.judge(row_leaves, uneven)
        if verdict == "drop":
            return SKIP
        axes = self._rows.axes
        short = row_leaves[0][1][:axes] if row_leaves else ()
        full = self._rows.full if verdict == "pad" else None
        ready = structure.prepared(leaves, arrays, short, full, self.is_fresh)
        result = structure.batch(structure.put(ready, arrays))
        told = real = sharding = None
        if self._rows.rule == "pad":
            sharding = structure.row_leaf_sharding(arrays)
            told = real = self._masks.told(short, count)
            if self.compares and self._masks.is_spread(sharding):
                # Until the others have said what they have: of the right kind, for specs.
                result[self._rows.mask_key] = self._masks.whole({}, sharding)
            else:
                result[self._rows.mask_key] = self._masks.place(told, sharding)
                told = None
        if not self.compares:
            return Placed(result, structure)
        return Placed(
            result,
            structure,
            sharding,
            facts=structure.facts(arrays, self._rows),
            mask=told,
            host=ready if self._rows.rule == "pad" or self._pads_rows else None,
            kept=self._kept(real, arrays) if self._shares_rows else None,
        )

    def _flattened(self, batch: Any) -> tuple[list[Any], Structure]:
        leaves, treedef = jax.tree_util.tree_flatten(batch)
        known = self._structures
        found = next((structure for structure in known if structure.treedef == treedef), None)
        if found is None:
            if self._rows.rule == "pad":
                self._rows.check_maskable(batch)
            found = Structure(batch, treedef, self._placement, self._rows)
            known[:] = [found, *known[: _KEPT - 1]]
        return leaves, found

    def _kept(self, real: Any, arrays: list[Array | jax.Array | None]) -> dict[str, Any]:
        """What processes with the same rows have alike, and would not notice otherwise.

        Where records were left out, equal numbers of them may be others: contents tell.
        """
        count, content = self.tally(), ""
        if count != self._tallied:
            self._tallied, content = count, digest(arrays)
        return {"rows": real, "left out": count, "content": content}

    def _with_mask(self, placed: Placed, batch: Any, verdict: Verdict) -> Any:
        if placed.mask is None:
            return batch
        assert placed.rows_sharding is not None
        mask = self._masks.whole(verdict.masks, placed.rows_sharding)
        return {**batch, self._rows.mask_key: mask}

    def _enlarged(self, placed: Placed, shapes: dict[str, list[int]]) -> Any:
        """Returns the batch with rows of these shapes, zeros where they are larger."""
        structure, host = placed.structure, placed.host
        assert host is not None
        with _x64(self._x64):
            larger = [
                prepare(leaf, name, (*leaf.shape[: self._rows.axes], *shapes[name]), is_fresh=True)
                if name in shapes
                else leaf
                for leaf, name in zip(host, structure.names, strict=True)
            ]
            arrays = [as_array(leaf, "") for leaf in larger]
            batch = structure.batch(structure.put(larger, arrays))
        if self._rows.rule == "pad":
            batch[self._rows.mask_key] = placed.batch[self._rows.mask_key]
        return batch
