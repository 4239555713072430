"""Specs: shapes and dtypes of a dataset's elements, as far as its description says them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grain_jax._algebra import access, steps
from grain_jax._datasets import lineage, merges, nodes, roots
from grain_jax._datasets.iter_dataset import IterDataset, plan_of
from grain_jax._datasets.map_dataset import MapDataset
from grain_jax._datasets.plan import Grouped, Plan, Upstream
from grain_jax._values import errors, shapes, trees

__all__ = ["get_element_spec", "known", "known_of_node"]


def get_element_spec(ds: MapDataset[Any] | IterDataset[Any]) -> Any:
    """Returns shapes and dtypes of a dataset's elements, without reading or computing any.

    They are known of `range`, of arrays and dicts of arrays, and of sources that say them in an
    attribute `element_spec`. A transformation says what it makes of them in a method
    `output_spec(input_spec)`, which a function can have as an attribute.

    Args:
      ds: the dataset.

    Returns:
      A tree as the elements are, of `ShapeDtypeStruct`; an axis that is not fixed, as that of
      batches the last of which may be short, is None.

    Raises:
      InvalidValueError: for a transformation without `output_spec`.
      NotImplementedError: where nothing says what the elements are.

    Example:
      >>> import grain_jax as grain
      >>> import numpy as np
      >>> ds = grain.MapDataset.source({"image": np.zeros((9, 28, 28), np.uint8)})
      >>> spec = get_element_spec(ds.shuffle(seed=1).batch(4, drop_remainder=True))
      >>> spec["image"].shape
      (4, 28, 28)
    """
    if isinstance(ds, MapDataset):
        return _of_node(ds._node)
    if isinstance(ds, IterDataset):
        return _of_plan(plan_of(ds))
    raise errors.InvalidTypeError(
        f"get_element_spec takes a MapDataset or an IterDataset, got {type(ds).__name__}."
    )


def known(plan: Plan) -> Any | None:
    """Returns the spec of a plan's elements, or None where nothing says what they are."""
    try:
        return _of_plan(plan)
    except (NotImplementedError, errors.InvalidValueError):
        return None


def known_of_node(node: nodes.Node) -> Any | None:
    """Returns the spec of a node's elements, or None where nothing says what they are."""
    try:
        return _of_node(node)
    except (NotImplementedError, errors.InvalidValueError):
        return None


def _of_plan(plan: Plan) -> Any:
    root = plan.root
    if isinstance(root, Grouped):
        parents = [_of_plan(parent) for parent in root.parents]
        spec = parents[0] if root.step is None else root.grouping.spec(parents)
        if spec is None:
            raise _unknown(root.title)
    elif isinstance(root, Upstream):
        spec = _of_custom(root.dataset)
    elif isinstance(root, roots.NodeRoot):
        spec = _of_node(root.node)
    else:
        raise _unknown(type(root).__name__)
    for step in plan.steps:
        spec = _behind(step, spec)
    return spec


def _of_node(node: nodes.Node) -> Any:
    if isinstance(node, nodes.SourceNode):
        return _of_source(node.source.given)
    if isinstance(node, nodes.CustomNode):
        return _of_custom(node.dataset)
    parents = [_of_node(parent) for parent in lineage.parents(node)]
    if isinstance(node, merges.ZippedNode):
        return tuple(parents)
    if isinstance(node, (nodes.StepNode, nodes.BatchNode, nodes.FlatMapNode)):
        return _behind(node.step, parents[0])
    return parents[0]


def _of_source(given: Any) -> Any:
    said = getattr(given, "element_spec", None)
    if said is not None:
        return said
    if isinstance(given, range):
        return shapes.ShapeDtypeStruct((), np.int64)
    if isinstance(given, np.ndarray) and given.ndim:
        return shapes.ShapeDtypeStruct(given.shape[1:], given.dtype)
    if isinstance(given, Mapping):
        return {key: _of_source(column) for key, column in given.items()}
    raise _unknown(f"the source {access.describe(given)}", "Give it an attribute `element_spec`.")


def _of_custom(dataset: Any) -> Any:
    # The name that classes written for Grain have.
    said = getattr(dataset, "_element_spec", None)
    if said is None:
        raise _unknown(type(dataset).__name__, "Give it a property `_element_spec`.")
    return said


def _behind(step: steps.Step, spec: Any) -> Any:
    """Returns what a step makes of elements."""
    if step.counts == "fewer":
        return spec
    if step.batching is not None:
        if not step.batching.stacks:
            raise _unknown(f"the batch_fn of {step.title}")
        size = step.batching.size if step.batching.drop else None
        return _each(lambda leaf: (size, *leaf.shape), spec)
    if step.counts != "same":
        raise _unknown(step.title)
    # A method of the user's object, or a function with it.
    owner = getattr(step.function, "__self__", step.function)
    output_spec = getattr(owner, "output_spec", None)
    if output_spec is None:
        raise errors.InvalidValueError(
            f"{step.title} does not say what it makes of {spec!r}. Give it a method "
            "`output_spec(self, input_spec)` that returns the tree of ShapeDtypeStruct."
        )
    return output_spec(spec)


def _each(shape: Callable[[Any], tuple[int | None, ...]], spec: Any) -> Any:
    leaves, structure = trees.flatten(spec, is_sorted=False)
    changed = [shapes.ShapeDtypeStruct(shape(leaf), leaf.dtype) for leaf in leaves]
    return trees.unflatten(structure, changed)


def _unknown(what: str, remedy: str = "") -> NotImplementedError:
    return NotImplementedError(
        f"nothing says what the elements of {what} are, and none are read to find out. "
        f"{remedy or 'Read one: next(iter(ds)).'}"
    )
