"""Recovery: whether a dataset goes on where a state of its iterator was taken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from grain_jax._values import errors, trees

__all__ = ["assert_equal_output_after_checkpoint"]


def assert_equal_output_after_checkpoint(ds: Any) -> None:
    """Takes a state at every position, restores each, and compares all that follows.

    Args:
      ds: a dataset, or a loader, with an end; a few elements say as much as many.

    Raises:
      AssertionError: where what follows a state differs, or if there are no elements.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(9).seed(1).shuffle().to_iter_dataset().batch(2)
      >>> assert_equal_output_after_checkpoint(ds)
    """
    if not hasattr(ds, "__iter__") or isinstance(ds, (list, tuple, dict, str)):
        raise errors.InvalidTypeError(
            f"assert_equal_output_after_checkpoint takes a dataset or a loader, got {ds!r}."
        )
    iterator = iter(ds)
    states, elements = [_saved(iterator)], []
    for element in iterator:
        elements.append(element)
        states.append(_saved(iterator))
    assert elements, f"{ds!r} has no elements, so that nothing is compared."
    for place, state in enumerate(states):
        iterator = iter(ds)
        iterator.set_state(_loaded(state))
        found = list(iterator)
        expected = elements[place:]
        where = f"restored behind {place} elements, {ds!r}"
        for number, pair in enumerate(zip(found, expected, strict=False), place):
            _compare(*pair, f"{where} has another element {number}")
        assert len(found) == len(expected), (
            f"{where} has {len(found)} more elements, and not {len(expected)}."
        )


def _saved(iterator: Any) -> Any:
    state = iterator.get_state()
    return state if isinstance(state, bytes) else json.dumps(state)


def _loaded(state: Any) -> Any:
    return state if isinstance(state, bytes) else json.loads(state)


def _compare(found: Any, expected: Any, what: str) -> None:
    leaves, structure = trees.flatten(found)
    wanted, other = trees.flatten(expected)
    assert structure == other, f"{what}: its structure is {structure!r}, and not {other!r}."
    for one, two in zip(leaves, wanted, strict=True):
        assert _same(one, two), f"{what}: {one!r}, and not {two!r}."


def _same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if not hasattr(one, "dtype"):
        return bool(one == two) or (one != one and two != two)
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    try:
        np.testing.assert_array_equal(one, two)
    except AssertionError:
        return False
    return True
