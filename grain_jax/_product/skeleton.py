"""A batch without its rows, as JSON: what a process that has run dry needs for a batch of padding.

Leaves with rows become their dtype and the shape of a row. The others, which are the same on every
process, travel as they are. Dicts, lists, tuples and None are known; any other container is for a
process that has had batches of the same structure, in words.
"""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from grain_jax._product.leaves import is_keys
from grain_jax._values.errors import InvalidTypeError, InvalidValueError

__all__ = ["describe", "leaves_of", "tree_of"]

_LARGEST = 1 << 20
_MOST_OBJECTS = 1 << 12


def describe(
    batch: Any,
    leaves: Sequence[Any],
    lead: Sequence[int | None],
    rows: Sequence[Sequence[int] | None] | None = None,
) -> dict[str, Any]:
    """Returns a batch without its rows as a JSON value.

    Args:
      batch: a tree.
      leaves: its leaves, on the host or on devices.
      lead: for each leaf how many leading axes number its rows; None if it has no rows.
      rows: for each leaf the shape of a row, where it is another than the leaf's; or None.

    Raises:
      InvalidValueError: for a leaf without rows that is too large to travel.
      InvalidTypeError: for rows of typed keys.
    """
    return {
        "tree": _tree(batch, iter(range(len(leaves)))),
        "structure": _words(jax.tree_util.tree_structure(batch)),
        "leaves": [
            _leaf(leaf, axes, row)
            for leaf, axes, row in zip(leaves, lead, rows or [None] * len(leaves), strict=True)
        ],
    }


def leaves_of(skeleton: dict[str, Any], lead: int) -> list[Any]:
    """Returns the leaves of a batch that has no row.

    Args:
      skeleton: what `describe` returned.
      lead: how many leading axes number the rows.
    """
    return [_unleaf(leaf, lead) for leaf in skeleton["leaves"]]


def tree_of(skeleton: dict[str, Any], leaves: Sequence[Any], known: Sequence[Any] = ()) -> Any:
    """Returns a batch of these leaves, in the containers of the one that was described.

    Args:
      skeleton: what `describe` returned.
      leaves: what `leaves_of` returned of it.
      known: tree structures of batches that this process has had.

    Raises:
      InvalidValueError: if its containers are none that JSON can name, and not known either.
    """
    if skeleton["tree"] is not None:
        return _untree(skeleton["tree"], leaves)
    wanted, own = skeleton["structure"], {_words(treedef): treedef for treedef in known}
    if wanted in own:
        return jax.tree_util.tree_unflatten(own[wanted], leaves)
    had = f"its own batches had the structure {' or '.join(own)}" if own else "it had no batch"
    raise InvalidValueError(
        f"this process has run out of batches, and cannot make padding of the structure {wanted},"
        f" which the batch of another one has here: {had}. Make batches of dicts with text as"
        " keys, lists and tuples, which padding can be made of, or use remainder='drop'."
    )


def _tree(node: Any, numbers: Any) -> Any:
    """The containers with the numbers of their leaves, None if there is another kind of them."""
    if node is None:
        return ["none"]
    if type(node) is dict and all(isinstance(key, str) for key in node):
        # In the order in which JAX numbers leaves.
        parts = {key: _tree(node[key], numbers) for key in sorted(node)}
        return None if None in parts.values() else ["dict", parts]
    if type(node) in (list, tuple):
        items = [_tree(item, numbers) for item in node]
        return None if None in items else [type(node).__name__, items]
    return ["leaf", next(numbers)] if jax.tree_util.all_leaves([node]) else None


def _words(treedef: Any) -> str:
    """A structure in words, which are the same on all processes that have the same one."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(treedef))


def _untree(tree: Any, leaves: Sequence[Any]) -> Any:
    kind, *content = tree
    if kind == "none":
        return None
    if kind == "leaf":
        return leaves[content[0]]
    if kind == "dict":
        return {key: _untree(part, leaves) for key, part in content[0].items()}
    items = [_untree(part, leaves) for part in content[0]]
    return tuple(items) if kind == "tuple" else items


def _leaf(leaf: Any, axes: int | None, row: Sequence[int] | None) -> Any:
    if is_keys(leaf):
        if axes is not None:
            raise InvalidTypeError(
                f"a leaf has rows of {leaf.dtype}, for which there are no zeros to pad with. Use"
                " remainder='drop', or make the keys from integers after the transfer."
            )
        words = np.asarray(jax.random.key_data(leaf))
        return {"keys": str(jax.random.key_impl(leaf)), "value": _leaf(words, None, None)}
    if axes is not None:
        return {"dtype": _name(leaf.dtype), "row": list(leaf.shape[axes:] if row is None else row)}
    if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
        return _objects(leaf)
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(leaf)
        if array.nbytes > _LARGEST:
            raise InvalidValueError(
                f"a leaf without rows, of shape {array.shape} and dtype {array.dtype}, is too large"
                " to be sent to a process that has run out of batches. Keep it out of the batch,"
                " or use remainder='drop'."
            )
        data = base64.b64encode(array.tobytes()).decode()
        return {"dtype": _name(array.dtype), "shape": list(array.shape), "data": data}
    return {"value": leaf if isinstance(leaf, (str, bool, int, float)) else None}


def _objects(array: Any) -> Any:
    """An array of objects, as far as each of them can travel by itself."""
    if array.dtype != object or array.size > _MOST_OBJECTS:
        return {"value": None}
    return {"objects": [_leaf(one, None, None) for one in array.flat], "shape": list(array.shape)}


def _unleaf(leaf: Any, lead: int) -> Any:
    if "keys" in leaf:
        return jax.random.wrap_key_data(_unleaf(leaf["value"], lead), impl=leaf["keys"])
    if "value" in leaf:
        return leaf["value"]
    if "objects" in leaf:
        objects = np.empty(len(leaf["objects"]), object)
        objects[:] = [_unleaf(one, lead) for one in leaf["objects"]]
        return objects.reshape(leaf["shape"])
    dtype = _dtype(leaf["dtype"])
    if "row" in leaf:
        return np.zeros((0,) * lead + tuple(leaf["row"]), dtype)
    data = base64.b64decode(leaf["data"])
    return np.frombuffer(data, dtype).reshape(leaf["shape"])


def _name(dtype: Any) -> str:
    if dtype.names is not None:
        return repr(np.lib.format.dtype_to_descr(dtype))
    if dtype.kind == "T":
        return "T"
    # `str` of a dtype that NumPy does not know itself, as bfloat16, only says how long it is.
    return str(dtype.name if dtype.isbuiltin == 2 else dtype.str)


def _dtype(name: str) -> Any:
    return (
        np.lib.format.descr_to_dtype(ast.literal_eval(name)) if name[0] == "[" else np.dtype(name)
    )
