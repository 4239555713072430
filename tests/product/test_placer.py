"""What a process tells of a batch that it hands out, however far it has read ahead, and padding."""

from __future__ import annotations

import collections
import json
from typing import Any

import jax
import numpy as np
import pytest

from grain_jax._product.lockstep import Verdict
from grain_jax._product.placer import Placed, Placer
from grain_jax._product.remainder import Rows
from grain_jax._values.errors import InvalidValueError

Pair = collections.namedtuple("Pair", "left right")


def of_many(rule: str = "pad", *, pads_rows: bool = False) -> Placer:
    """A placer that does all that it does for several processes."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placer = Placer(sharding, Rows(rule, "mask", None), pads_rows=pads_rows)
    placer.compares = True
    return placer


def beside(batches: list[Any], own: list[Any]) -> Any:
    """The padding of a process that has run out, beside the first of a process that reads ahead."""
    other, mine = of_many(), of_many()
    placed = [other(batch) for batch in batches]
    for batch in own:
        mine(batch)
    bones = json.loads(json.dumps(other.skeleton(placed[0], Verdict())))
    padding = mine.padding(bones, Verdict())
    assert isinstance(padding, Placed)
    assert padding.is_padding
    assert not padding.batch["mask"].any()
    return padding.batch


def texts(*words: str) -> list[str]:
    return list(words)


@pytest.mark.parametrize("kept", [list, tuple, lambda words: [{"t": word} for word in words]])
def test_text_in_containers_that_get_shorter_in_batches_read_ahead(kept: Any) -> None:
    full = {"x": np.arange(3), "t": kept(["a", "b", "c"])}
    short = {"x": np.arange(1), "t": kept(["d"])}
    got = beside([full, short], [])
    assert jax.tree.structure(got["t"]) == jax.tree.structure(full["t"])
    np.testing.assert_array_equal(got["x"], np.zeros(3, int))


def test_padding_has_the_structure_of_the_batch_beside_it() -> None:
    long = {"a": np.ones((2, 3), np.float32), "x": np.ones(2, np.int32)}
    short = {"x": np.ones(2, np.int32), "y": np.ones((2, 3), np.float32)}
    for theirs, own in [(long, short), (short, long), (long, long)]:
        got = beside([theirs], [own])
        assert got.keys() - {"mask"} == theirs.keys()
        for name, leaf in theirs.items():
            assert (got[name].shape, got[name].dtype) == (leaf.shape, leaf.dtype)
            assert not got[name].any()


def test_padding_of_other_containers_needs_the_same_structure_here() -> None:
    def batch(pair: Any) -> Any:
        return {"p": pair}

    one, two = np.ones(2), np.ones((2, 2))
    got = beside([batch(Pair(one, two))], [batch(Pair(two, one)), batch([one, two])])
    assert isinstance(got["p"], Pair)
    assert (got["p"].left.shape, got["p"].right.shape) == ((2,), (2, 2))
    with pytest.raises(
        InvalidValueError, match=r"Pair.*: its own batches had the .*PyTreeDef"
    ) as error:
        beside([batch(Pair(one, two))], [batch([one, two])])
    assert "Make batches of dicts" in str(error.value)
    with pytest.raises(InvalidValueError, match=r"Pair.*: it had no batch"):
        beside([batch(Pair(one, two))], [])


def test_rows_are_enlarged_in_a_batch_of_which_another_was_read_ahead() -> None:
    placer = of_many("error", pads_rows=True)
    first = placer({"x": np.ones((2, 1), np.int32)})
    placer({"y": np.ones((2, 3), np.int32), "z": np.zeros(2)})
    got = placer.finish(first, Verdict(shapes={"batch['x']": [2]}))
    np.testing.assert_array_equal(got["x"], [[1, 0], [1, 0]])
    assert got.keys() == {"x"}
