"""Trees agree with jax.tree_util on everything that it registers."""

from __future__ import annotations

import collections
import subprocess
import sys
from typing import Any, NamedTuple

import flax.struct
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._values.errors import InvalidValueError
from grain_jax._values.trees import flatten, paths, unflatten


class Point(NamedTuple):
    x: Any
    y: Any


@flax.struct.dataclass
class Sample:
    image: Any
    label: Any
    name: str = flax.struct.field(pytree_node=False, default="n")


class Unregistered:
    pass


leaf = st.sampled_from([1, 2.5, "text", b"bytes", True, np.float32(3), np.arange(3), 1j])
keys = st.text("abc", max_size=2)
trees = st.recursive(
    leaf | st.none(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(keys, children, max_size=3)
        | st.dictionaries(keys, children, max_size=3).map(collections.OrderedDict)
        | st.dictionaries(keys, children, max_size=3).map(lambda d: collections.defaultdict(int, d))
        | st.builds(Point, children, children)
        | st.builds(Sample, children, children)
    ),
    max_leaves=8,
)


def same(left: Any, right: Any) -> bool:
    return left is right


@given(trees)
def test_leaves_paths_and_structure_are_those_of_jax(tree: Any) -> None:
    leaves, treedef = flatten(tree)
    expected, jax_treedef = jax.tree.flatten(tree)
    assert len(leaves) == treedef.num_leaves == len(expected)
    assert all(map(same, leaves, expected))
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    assert paths(tree) == [jax.tree_util.keystr(path) for path, _ in with_paths]
    rebuilt = unflatten(treedef, leaves)
    assert jax.tree.structure(rebuilt) == jax_treedef
    assert all(map(same, jax.tree.leaves(rebuilt), expected))
    assert flatten(rebuilt)[1] == treedef


@given(trees, trees)
def test_structures_are_equal_when_those_of_jax_are(left: Any, right: Any) -> None:
    equal = jax.tree.structure(left) == jax.tree.structure(right)
    assert (flatten(left)[1] == flatten(right)[1]) == equal


def test_keys_of_a_dict_are_sorted_those_of_an_ordered_dict_are_not() -> None:
    assert flatten({"b": 1, "a": 2})[0] == [2, 1]
    assert flatten(collections.OrderedDict(b=1, a=2))[0] == [1, 2]


def test_subclasses_of_containers_and_unknown_classes_are_leaves() -> None:
    class Config(dict[str, int]):
        pass

    values = [Config(a=1), Unregistered(), slice(3)]
    assert flatten(values)[0] == values


def test_a_structure_shows_its_keys() -> None:
    assert repr(flatten({"b": 1, "a": (2, None), "c": [Point(1, 2)]})[1]) == (
        "{'a': (*, None), 'b': *, 'c': [Point(*, *)]}"
    )


def test_keys_that_do_not_compare_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"\[1, 'a'\].*sorts the keys"):
        flatten({1: 1, "a": 2})
    with pytest.raises(ValueError, match="sorting"):
        jax.tree.flatten({1: 1, "a": 2})


def test_a_wrong_number_of_leaves_is_refused() -> None:
    _, treedef = flatten([1, 2])
    for leaves in ([1], [1, 2, 3]):
        with pytest.raises(InvalidValueError, match=rf"{len(leaves)} leaves do not fill"):
            unflatten(treedef, leaves)


def test_jax_is_not_imported_and_what_it_registers_is_a_leaf_until_then() -> None:
    script = """
import sys, collections
from grain_jax._values.trees import flatten
class Box:
    def __init__(self, x): self.x = x
box = Box(1)
assert flatten({"a": [box, collections.OrderedDict(b=2)]})[0] == [box, 2]
assert "jax" not in sys.modules
import jax
jax.tree_util.register_pytree_node(Box, lambda b: ((b.x,), None), lambda _, c: Box(*c))
assert flatten({"a": [box, 2]})[0] == [1, 2]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=200)
