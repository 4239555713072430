"""Trees of values as JAX sees them, without importing JAX.

Nodes are `dict` (keys sorted), `OrderedDict`, `defaultdict`, `list`, `tuple`, namedtuples and
`None` (a node without children). Classes registered with `jax.tree_util` (such as `flax.struct`
dataclasses) are nodes too where JAX has been imported already: without JAX nothing can have been
registered. Everything else is a leaf, subclasses of the containers included.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grain_jax._values.errors import InvalidValueError

__all__ = [
    "IMMUTABLE_TYPES",
    "LEAF_TYPES",
    "Level",
    "TreeDef",
    "flatten",
    "paths",
    "split",
    "static_difference",
    "unflatten",
]

# Exact types that are leaves whatever has been registered: the common case is one set look-up.
LEAF_TYPES = frozenset(
    {int, float, bool, complex, str, bytes, np.ndarray, *np.sctypeDict.values()} - {object}
)

IMMUTABLE_TYPES = (LEAF_TYPES - {np.ndarray, np.void}) | {type(None)}
"""Types whose values nobody can change."""

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


class Level:
    """One node without its children: its class, and what rebuilding needs besides them."""

    __slots__ = ("extra", "kind")

    def __init__(self, kind: type, extra: Any = None) -> None:
        self.kind = kind
        self.extra = extra

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Level):
            return NotImplemented
        return self.kind is other.kind and _equal(self.extra, other.extra)

    def __hash__(self) -> int:
        return hash(self.kind)

    def build(self, children: Sequence[Any]) -> Any:
        """The node with these children."""
        kind = self.kind
        if kind is dict:
            return dict(zip(self.extra, children, strict=True))
        if kind is list:
            return list(children)
        if kind is tuple:
            return tuple(children)
        if kind is type(None):
            return None
        if kind is collections.OrderedDict:
            return collections.OrderedDict(zip(self.extra, children, strict=True))
        if kind is collections.defaultdict:
            factory, keys = self.extra
            return collections.defaultdict(factory, zip(keys, children, strict=True))
        if self.extra is None:
            return kind(*children)  # a namedtuple
        return self.extra.unflatten(children)

    def labels(self, count: int, node: Any = None) -> list[str]:
        """How JAX writes the way to each child, such as `['image']`, `[0]` or `.mean`.

        `node` is needed for the field names of a registered class only.
        """
        kind = self.kind
        if kind is dict or kind is collections.OrderedDict:
            return [f"[{key!r}]" for key in self.extra]
        if kind is collections.defaultdict:
            return [f"[{key!r}]" for key in self.extra[1]]
        if kind is list or kind is tuple or kind is type(None):
            return [f"[{i}]" for i in range(count)]
        if self.extra is None:
            return [f".{name}" for name in kind._fields]  # type: ignore[attr-defined]
        jax = sys.modules.get("jax.tree_util")
        if jax is None or node is None:
            return [f"[<child {i}>]" for i in range(count)]
        with_paths, _ = jax.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
        return ["".join(map(str, path)) for path, _ in with_paths]

    def describe(self, children: Sequence[str]) -> str:
        """The node as text, with texts for its children."""
        kind = self.kind
        if kind is type(None):
            return "None"
        if kind is list:
            return f"[{', '.join(children)}]"
        if kind is tuple:
            return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
        if kind in _DICTS:
            keys = self.extra[1] if kind is collections.defaultdict else self.extra
            inside = ", ".join(f"{k!r}: {c}" for k, c in zip(keys, children, strict=True))
            return f"{{{inside}}}" if kind is dict else f"{kind.__name__}({{{inside}}})"
        return f"{kind.__name__}({', '.join(children)})"


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays as static fields have no single answer
        return False


_HOLE = object()


def static_difference(one: Any, other: Any) -> tuple[str, Any, Any] | None:
    """What two values of one registered class have unlike besides their children.

    Returns:
        What it is called, and both values; None if that is not the difference.
    """
    opened, second = split(one), split(other)
    if opened is None or second is None or type(one) is not type(other):
        return None
    level, children = opened
    if not hasattr(level.extra, "node_data") or len(children) != len(second[1]):
        return None
    fields = []
    for extra in (level.extra, second[0].extra):
        try:
            # Where a hole is left there was a child.
            rebuilt = extra.unflatten([_HOLE] * len(children))
            fields.append({k: v for k, v in vars(rebuilt).items() if v is not _HOLE})
        except Exception:  # its class looks into its children, or keeps no fields by name
            fields.append({})
    for name, value in fields[0].items():
        if name in fields[1] and not _equal(value, fields[1][name]):
            return f"static field {name!r}", value, fields[1][name]
    about, others = level.extra.node_data()[1], second[0].extra.node_data()[1]
    return None if _equal(about, others) else ("static data", about, others)


class TreeDef:
    """The structure of a tree: `repr` shows it with `*` for the leaves, `==` compares it."""

    __slots__ = ("children", "level", "num_leaves")

    def __init__(self, level: Level | None, children: tuple[TreeDef, ...]) -> None:
        self.level = level
        self.children = children
        self.num_leaves: int = 1 if level is None else sum(child.num_leaves for child in children)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeDef):
            return NotImplemented
        return self.level == other.level and self.children == other.children

    def __hash__(self) -> int:
        return hash((self.level, self.children))

    def __repr__(self) -> str:
        return "*" if self.level is None else self.level.describe([repr(c) for c in self.children])


_LEAF = TreeDef(None, ())
_NONE = Level(type(None))
_LIST = Level(list)
_TUPLE = Level(tuple)


def split(value: Any, is_sorted: bool = True) -> tuple[Level, Sequence[Any]] | None:
    """The outermost level of a tree and its children; None if the value is a leaf.

    Args:
        value: a tree.
        is_sorted: whether the keys of a dict are, as in JAX; else they stay in their order.
    """
    kind = type(value)
    if kind in LEAF_TYPES:
        return None
    if kind is dict:
        keys = _sorted_keys(value) if is_sorted else _checked_keys(value)
        return Level(dict, keys), [value[key] for key in keys]
    if value is None:
        return _NONE, ()
    if kind is list:
        return _LIST, value
    if kind is tuple:
        return _TUPLE, value
    if kind is collections.OrderedDict:
        return Level(kind, tuple(value)), list(value.values())
    if kind is collections.defaultdict:
        keys = _sorted_keys(value) if is_sorted else _checked_keys(value)
        return Level(kind, (value.default_factory, keys)), [value[key] for key in keys]
    registered = _split_registered(value)
    if registered is not None:
        return registered
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return Level(kind), value
    return None


def _split_registered(value: Any) -> tuple[Level, Sequence[Any]] | None:
    """What `jax.tree_util` says of a value whose class is not built in, if JAX is here."""
    tree_flatten = getattr(sys.modules.get("jax.tree_util"), "tree_flatten", None)
    if tree_flatten is None:
        return None
    children, level = tree_flatten(value, is_leaf=lambda x: x is not value)
    if len(children) == 1 and children[0] is value:
        return None
    if isinstance(value, tuple) and list(map(id, children)) == list(map(id, value)):
        return None  # a namedtuple that nobody registered: rebuilt alike with and without JAX
    return Level(type(value), level), children


def _sorted_keys(node: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(node))
    except TypeError as error:
        raise InvalidValueError(
            f"a dict with the keys {list(node)!r} cannot be a tree of arrays: JAX sorts the keys "
            f"of a dict, and these do not compare ({error}). Use keys of one type, or an "
            "OrderedDict."
        ) from error


def _checked_keys(node: dict[Any, Any]) -> tuple[Any, ...]:
    _sorted_keys(node)
    return tuple(node)


def flatten(tree: Any, is_sorted: bool = True) -> tuple[list[Any], TreeDef]:
    """The leaves in JAX's order, and the structure that `unflatten` needs.

    Without `is_sorted`, dicts keep the order of their keys.

    >>> flatten({"b": 1, "a": (2, None)})
    ([2, 1], {'a': (*, None), 'b': *})
    """
    if type(tree) in LEAF_TYPES:
        return [tree], _LEAF
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, is_sorted)


def _flatten(tree: Any, leaves: list[Any], is_sorted: bool) -> TreeDef:
    opened = split(tree, is_sorted)
    if opened is None:
        leaves.append(tree)
        return _LEAF
    level, children = opened
    if len(children) and all(type(child) in LEAF_TYPES for child in children):
        leaves.extend(children)
        return TreeDef(level, (_LEAF,) * len(children))
    return TreeDef(level, tuple(_flatten(child, leaves, is_sorted) for child in children))


def unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves.

    Raises:
        InvalidValueError: if the number of leaves is not that of the structure.
    """
    if len(leaves) != treedef.num_leaves:
        raise InvalidValueError(
            f"{len(leaves)} leaves do not fill the tree {treedef!r}, "
            f"which has {treedef.num_leaves}."
        )
    return _unflatten(treedef, iter(leaves))


def _unflatten(treedef: TreeDef, leaves: Iterator[Any]) -> Any:
    if treedef.level is None:
        return next(leaves)
    return treedef.level.build([_unflatten(child, leaves) for child in treedef.children])


def paths(tree: Any, is_sorted: bool = True) -> list[str]:
    """The way to each leaf in JAX's notation, in the order of `flatten`.

    >>> paths({"image": [0, 1], "label": 2})
    ["['image'][0]", "['image'][1]", "['label']"]
    """
    found: list[str] = []
    _paths(tree, "", found, is_sorted)
    return found


def _paths(tree: Any, prefix: str, found: list[str], is_sorted: bool) -> None:
    opened = split(tree, is_sorted)
    if opened is None:
        found.append(prefix)
        return
    level, children = opened
    for label, child in zip(level.labels(len(children), tree), children, strict=True):
        _paths(child, prefix + label, found, is_sorted)
