"""Where leaves go: a sharding for each, and the global shape that follows from the local one."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import defaultdict
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from grain_jax._values.row_shards import Interval
from grain_jax._values.sharding import rows_of_devices

__all__ = [
    "Parts",
    "Placement",
    "check_rows",
    "described",
    "held_rows",
    "layout",
    "replicated",
    "row_sharding",
    "spec",
    "splits_rows",
]


def spec(*axes: Any) -> PartitionSpec:
    """`PartitionSpec(*axes)`, which has no types of its own."""
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


class Placement:
    """A sharding, a device, None (all devices along axis 0), or a tree prefix of these.

    Raises:
      InvalidTypeError: if something in it is none of these.
      InvalidValueError: if this process has no device of a sharding.
    """

    def __init__(self, sharding: Any) -> None:
        leaves, prefix = jax.tree_util.tree_flatten(sharding, is_leaf=_is_place)
        self._prefix: Any = prefix
        self.names = names = _names(jax.tree_util.tree_unflatten(self._prefix, range(len(leaves))))
        self._hint = _hint_of_devices(sharding)
        self.is_tree = len(leaves) != 1 or bool(names[0])
        if not leaves:
            raise InvalidValueError("the tree of shardings is empty: give None for all devices")
        self.leaves = [
            _as_sharding(leaf, f"sharding{name}") for leaf, name in zip(leaves, names, strict=True)
        ]

    @property
    def devices(self) -> list[Any]:
        """All devices, on every process, that elements go to."""
        return _in_order(set().union(*(sharding.device_set for sharding in self.leaves)))

    def row_sharding(self, axis: int) -> Sharding:
        """The sharding of the first leaf that has rows, by what the others say."""
        spread = [leaf for leaf in self.leaves if not leaf.is_fully_addressable] or self.leaves
        return next((leaf for leaf in spread if splits_rows(leaf, axis)), spread[0])

    def broadcast(self, batch: Any) -> list[Sharding]:
        """The sharding of each leaf of a batch.

        Raises:
          InvalidValueError: if the tree of shardings is no prefix of the batch.
        """
        try:
            subtrees = self._prefix.flatten_up_to(batch)
        except ValueError:
            # What JAX says has the whole batch in it.
            raise InvalidValueError(
                "the tree of shardings does not fit the batch. The shardings have the structure"
                f" {self._prefix}, the batch {jax.tree_util.tree_structure(batch)}: give one"
                f" sharding for each leaf, or one for a whole subtree.{self._hint}"
            ) from None
        return [
            sharding
            for sharding, subtree in zip(self.leaves, subtrees, strict=True)
            for _ in jax.tree_util.tree_leaves(subtree)
        ]


class Parts:
    """How a sharding cuts arrays of one rank: for each axis, into how many parts, here and in all.

    Raises:
      InvalidValueError: if the sharding is for arrays of a higher rank.
    """

    def __init__(self, sharding: Sharding, rank: int) -> None:
        self._sharding = sharding
        devices = len(sharding.device_set)
        # Every number of parts divides the number of devices, so this shape can be cut.
        probe = (devices,) * rank
        if isinstance(sharding, NamedSharding) and len(sharding.spec) > rank:
            raise InvalidValueError(
                f"has rank {rank}, and its sharding {sharding.spec} is for rank"
                f" {len(sharding.spec)} or more. Give a tree of shardings, with a"
                f" PartitionSpec of at most {rank} entries for this leaf"
            )
        try:
            shard = sharding.shard_shape(probe)
            indices = sharding.addressable_devices_indices_map(probe).values()
        except (ValueError, IndexError) as error:
            raise InvalidValueError(
                f"has rank {rank}, which its sharding {sharding} is not for ({error})"
            ) from None
        self.parts = [devices // size for size in shard]
        self.local_parts = [
            len({(index[axis].start, index[axis].stop) for index in indices if index is not None})
            for axis in range(rank)
        ]

    @property
    def is_spread(self) -> bool:
        """Whether some axis is cut into more parts than there are on this process."""
        return self.parts != self.local_parts

    def global_shape(self, shape: tuple[int, ...], joined: int) -> tuple[int, ...]:
        """The shape over all processes of an array with this shape on each.

        Args:
          shape: of the array here.
          joined: the axis along which each process has a part of its own; along every other one
            each process has the whole.

        Raises:
          InvalidValueError: if the shape cannot be cut.
        """
        for axis, size in enumerate(shape):
            if size % self._cut(axis, joined):
                why = self.indivisible(size, axis, joined)
                raise InvalidValueError(f"has shape {shape}, and {why}")
        return tuple(
            size * self.parts[axis] // self.local_parts[axis] if axis == joined else size
            for axis, size in enumerate(shape)
        )

    def indivisible(self, size: int, axis: int, joined: int) -> str:
        """Why an axis of this size cannot be cut, and what can."""
        parts = self._cut(axis, joined)
        by, fewer = "devices", "fewer devices"
        if isinstance(self._sharding, NamedSharding):
            names = self._sharding.spec[axis]
            names = (names,) if isinstance(names, str) else names
            by = f"mesh axes {names} of the mesh {dict(self._sharding.mesh.shape)}"
            fewer = "a mesh with fewer devices along them"
        here = "" if parts == self.parts[axis] else f", {self.parts[axis]} over all processes,"
        below = size // parts * parts
        works = f"{below} or {below + parts}" if below else f"{parts}"
        what = "a batch size per process" if axis == joined == 0 else f"an axis {axis}"
        fits = math.gcd(size, parts)
        return (
            f"axis {axis} is cut into {parts} parts{here} by the {by}:"
            f" {size} is not a multiple of {parts}. Use {what} of {works}, or {fewer}"
            f" ({fits} would work)"
        )

    def _cut(self, axis: int, joined: int) -> int:
        """Into how many parts this process's part of an axis is cut."""
        return self.local_parts[axis] if axis == joined else self.parts[axis]


@functools.lru_cache(maxsize=256)
def layout(sharding: Sharding, rank: int) -> Parts:
    """The `Parts` of a sharding for one rank, kept from the last time."""
    return Parts(sharding, rank)


def check_rows(sharding: Sharding, rows: int, axis: int = 0) -> None:
    """Raises if batches with this many rows cannot be cut, whatever the rest of their shape.

    Raises:
      InvalidValueError: if so.
    """
    rank = max(axis + 1, len(sharding.spec)) if isinstance(sharding, NamedSharding) else axis + 1
    cut = layout(sharding, rank)
    if rows % cut.local_parts[axis]:
        why = cut.indivisible(rows, axis, axis)
        raise InvalidValueError(f"every leaf has {rows} rows, and {why}.")


@functools.lru_cache(maxsize=64)
def held_rows(sharding: Sharding, axis: int) -> dict[int, frozenset[Interval]]:
    """The rows of each process, by process index, in the smallest batch that can be cut."""
    held: defaultdict[int, set[Interval]] = defaultdict(set)
    for device, interval in rows_of_devices(sharding, axis).items():
        held[device.process_index].add(interval)
    return {process: frozenset(rows) for process, rows in held.items()}


def described(sharding: Sharding) -> str:
    """A sharding in words, which are the same on all processes that have the same one."""
    if sharding.is_fully_addressable:
        return "on devices of its own"
    if not isinstance(sharding, NamedSharding):
        return str(sharding)
    # A name alone means what a tuple of one means, and nothing more what None means.
    axes = [one[0] if isinstance(one, tuple) and len(one) == 1 else one for one in sharding.spec]
    while axes and not axes[-1]:
        axes.pop()
    mesh: Any = sharding.mesh
    ids = [device.id for device in mesh.devices.flat]
    devices = ", ".join(map(str, ids[:16]))
    if len(ids) > 16:
        devices += f", ... ({hashlib.sha256(str(ids).encode()).hexdigest()[:8]})"
    more = [str(getattr(mesh, "axis_types", "")), str(sharding.memory_kind or "")]
    return ", ".join(
        [
            f"PartitionSpec({', '.join(map(repr, axes))})",
            f"mesh {dict(mesh.shape)}",
            f"devices {devices}",
            *filter(None, more),
        ]
    )


def splits_rows(sharding: Sharding, axis: int) -> bool:
    """Whether the sharding names mesh axes for this axis, be they of size 1."""
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= axis:
        return False
    return bool(sharding.spec[axis])


@functools.lru_cache(maxsize=256)
def replicated(sharding: Sharding) -> Sharding:
    """The sharding that puts the whole array on each device of another sharding."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, spec(), memory_kind=sharding.memory_kind)
    if isinstance(sharding, SingleDeviceSharding):
        return sharding
    return NamedSharding(Mesh(np.array(_in_order(sharding.device_set)), ("devices",)), spec())


@functools.lru_cache(maxsize=256)
def row_sharding(sharding: Sharding, axis: int) -> Sharding:
    """The sharding of what has axes 0 to `axis` of arrays with another sharding.

    Raises:
      InvalidTypeError: if it cannot be told.
    """
    if isinstance(sharding, NamedSharding):
        axes = spec(*sharding.spec[: axis + 1])
        return NamedSharding(sharding.mesh, axes, memory_kind=sharding.memory_kind)
    if isinstance(sharding, SingleDeviceSharding):
        return sharding
    raise InvalidTypeError(
        f"{sharding} does not say how axis {axis} is cut, so the mask of a padded batch has no"
        " sharding. Use a jax.sharding.NamedSharding."
    )


def _hint_of_devices(sharding: Any) -> str:
    """Says what to write for a list of devices, which stands for one leaf each."""

    def is_list(part: Any) -> bool:
        is_sequence = isinstance(part, (list, tuple)) and len(part) > 0
        return is_sequence and all(isinstance(place, jax.Device) for place in part)

    if not any(map(is_list, jax.tree_util.tree_leaves(sharding, is_leaf=is_list))):
        return ""
    return (
        " To spread rows over a list of devices, write NamedSharding(Mesh(devices, ('data',)),"
        " PartitionSpec('data')), or give None for all devices."
    )


def _in_order(devices: set[Any]) -> list[Any]:
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def _is_place(value: Any) -> bool:
    return value is None or isinstance(value, (Sharding, jax.Device, PartitionSpec))


def _names(tree: Any) -> list[str]:
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in with_paths]


def _as_sharding(place: Any, name: str) -> Sharding:
    if place is None:
        return NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), spec("batch"))
    if isinstance(place, jax.Device):
        place = SingleDeviceSharding(place)
    if isinstance(place, PartitionSpec):
        raise InvalidTypeError(
            f"{name} is {place}, which does not say on which mesh. Write"
            f" jax.sharding.NamedSharding(mesh, {place})."
        )
    if isinstance(place, Mesh):
        raise InvalidTypeError(
            f"{name} is a mesh, which does not say what lies along its axes. Write"
            f" jax.sharding.NamedSharding(mesh, PartitionSpec({place.axis_names[0]!r}))."
        )
    if not isinstance(place, Sharding):
        raise InvalidTypeError(
            f"{name} is {place!r}, a {type(place).__name__}. Give a jax.sharding.Sharding, a"
            " device, None for all devices along axis 0, or a tree of these."
        )
    if isinstance(place, NamedSharding) and not isinstance(place.mesh, Mesh):
        raise InvalidTypeError(
            f"{name} is on an abstract mesh, which has no devices. Build the NamedSharding on a"
            " jax.sharding.Mesh."
        )
    if not place.addressable_devices:
        raise InvalidValueError(
            f"{name} is {place}, and none of its devices belongs to this process (process"
            f" {jax.process_index()} of {jax.process_count()}). Iterate only on processes that hold"
            " some of its devices."
        )
    return place
