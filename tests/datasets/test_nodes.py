"""Nodes: blocks of elements at any indices, with their whereabouts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from grain_jax import errors, transforms
from grain_jax._algebra import index_maps, seeded, sources, steps
from grain_jax._datasets import lineage, nodes
from grain_jax._values import faults


def at(*indices: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(indices, np.int64)


def source(*data: Any) -> nodes.SourceNode:
    return nodes.SourceNode(sources.adapt(list(data)))


def stepped(parent: nodes.Node, kind: str, function: Any, **settings: Any) -> nodes.StepNode:
    step = steps.step_for(kind, function, number=1, **settings)
    return nodes.StepNode(parent, step)


def test_source_wraps_and_leaves_out_absent_records() -> None:
    node = source(10, None, 12)
    block = node.read(at(-1, 0, 1, 5, 4), seeded.Direct())
    assert (block.data, list(block.positions), block.rows) == ([12, 10, 12], [-1, 0, 5], [0, 1, 3])


def test_source_reads_all_keys_at_once() -> None:
    asked: list[list[int]] = []

    class Source:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            raise AssertionError("one by one")

        def __getitems__(self, indices: list[int]) -> list[int]:
            asked.append(list(indices))
            return [10 * i for i in indices]

    node = nodes.IndexNode(
        nodes.SourceNode(sources.adapt(Source())), index_maps.Slice(range(9, -1, -1), 10)
    )
    block = node.read(at(0, 1, 1, 12), seeded.Direct())
    assert asked == [[9, 8, 8, 7]]
    assert (block.data, list(block.positions)) == ([90, 80, 80, 70], [0, 1, 1, 12])


def test_positions_are_those_of_the_node_above() -> None:
    node = nodes.IndexNode(
        stepped(source(1, 2, 3, 4), "filter", lambda x: x % 2),
        index_maps.Slice(range(3, -1, -1), 4),
    )
    block = node.read(at(0, 1, 2, 3), seeded.Direct())
    assert (block.data, list(block.positions), block.rows) == ([3, 1], [1, 3], [1, 3])


def test_keys_follow_the_maps() -> None:
    below = source(*range(5))
    sliced = nodes.IndexNode(below, index_maps.Slice(range(1, 5), 5))
    assert [sliced.key(i) for i in (0, 3, 4)] == [1, 4, 1]
    flat = nodes.FlatMapNode(sliced, flat_step(), 2)
    assert [flat.key(i) for i in (0, 1, 2)] == [1, 1, 2]
    batched = nodes.BatchNode(sliced, batch_step(2))
    assert batched.key(0) is None


class Copies(transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: int) -> list[int]:
        return [element] * (element % 3)


def flat_step() -> steps.FlatMapStep:
    step = steps.step_for("flat_map", Copies(), number=1)
    assert isinstance(step, steps.FlatMapStep)
    return step


def batch_step(size: int, drop: bool = False, function: Any = list) -> steps.BatchStep:
    step = steps.step_for("batch", transforms.Batch(size, drop, function), number=1)
    assert isinstance(step, steps.BatchStep)
    return step


def test_flat_map_splits_each_element_once() -> None:
    calls: list[int] = []

    class Counted(Copies):
        def flat_map(self, element: int) -> list[int]:
            calls.append(element)
            return super().flat_map(element)

    step = steps.step_for("flat_map", Counted(), number=1)
    assert isinstance(step, steps.FlatMapStep)
    node = nodes.FlatMapNode(source(1, 2, 3), step, 2)
    assert node.length == 6
    block = node.read(at(3, 0, 2, 1, 5, 9), seeded.Direct())
    assert sorted(calls) == [1, 2, 2, 3]  # the second 2 stands in the next epoch
    assert block.data == [2, 1, 2, 2]
    assert list(block.positions) == [3, 0, 2, 9]
    assert block.rows == [0, 1, 2, 5]


@pytest.mark.parametrize(("drop", "length"), [(False, 3), (True, 2)])
def test_batches_stay_within_an_epoch(drop: bool, length: int) -> None:
    node = nodes.BatchNode(source(*range(5)), batch_step(2, drop))
    assert node.length == length
    block = node.read(at(*range(2 * length)), seeded.Direct())
    assert block.data == 2 * [[0, 1], [2, 3], [4]][:length]


def test_a_batch_names_the_absent_element() -> None:
    node = nodes.BatchNode(source(1, None, 3), batch_step(3))
    with pytest.raises(ValueError, match=r"the one at index 1 is absent.*to_iter_dataset"):
        node.read(at(0), seeded.Direct())


def test_batches_that_the_source_stacks() -> None:
    array = np.arange(12).reshape(6, 2)
    node = nodes.IndexNode(
        nodes.SourceNode(sources.adapt(array)), index_maps.Slice(range(5, -1, -1), 6)
    )
    assert lineage.stacks(node)
    found = nodes.read_batch(node, at(0, 1, 7), None, 0)
    assert found.tolist() == array[[5, 4, 4]].tolist()
    assert nodes.read_batch(stepped(node, "map", abs), at(0), None, 0) is None
    assert not lineage.stacks(stepped(node, "map", abs))


def test_draws_of_a_step_depend_on_the_element_alone() -> None:
    step = steps.step_for("map", lambda x: random.random(), number=1)
    node = nodes.StepNode(source(*range(5)), step, nodes.Draws(3, 1))
    whole = node.read(at(*range(5)), seeded.Direct()).data
    assert len(set(whole)) == 5
    assert [node.read(at(i), seeded.Direct()).data[0] for i in range(5)] == whole
    assert node.read(at(3, 1, 3), seeded.Direct()).data == [whole[3], whole[1], whole[3]]
    other = nodes.StepNode(source(*range(5)), step, nodes.Draws(3, 2))
    assert not set(other.read(at(*range(5)), seeded.Direct()).data) & set(whole)


def test_nodes_know_whether_reading_them_may_draw() -> None:
    below = source(1, 2)
    step = steps.step_for("map", lambda x: random.random(), number=1)
    drawing = nodes.StepNode(below, step, nodes.Draws(0, 1))
    assert lineage.drawing(drawing) == "step 1: map(<lambda>)"
    above = nodes.IndexNode(drawing, index_maps.Shuffle(2, 1))
    assert lineage.drawing(above) == "step 1: map(<lambda>)"
    assert lineage.drawing(nodes.StepNode(below, step)) == ""


def test_rows_with_draws() -> None:
    step = steps.step_for("filter", lambda x: random.random() >= 0 and x % 2, number=1)
    node = nodes.StepNode(source(1, 2, None, 3), step, nodes.Draws(0, 1))
    block = node.read(at(0, 1, 2, 3), seeded.Direct())
    assert (block.data, list(block.positions), block.rows) == ([1, 3], [0, 3], [0, 3])
    everything = nodes.StepNode(source(1, 3), step, nodes.Draws(0, 1))
    assert everything.read(at(0, 1), seeded.Direct()).rows is None
    assert node.read(at(), seeded.Direct()).data == []


@pytest.mark.parametrize("make", [source, lambda: nodes.BatchNode(source(), batch_step(2))])
def test_nothing_is_at_no_index(make: Any) -> None:
    node = make()
    assert node.length == 0
    assert node.read(at(), seeded.Direct()).data == []
    with pytest.raises(errors.OutOfRangeError, match="index 3 of an empty dataset"):
        node.read(at(3), seeded.Direct())


def test_an_element_and_its_error() -> None:
    node = nodes.IndexNode(source(1, None), index_maps.Slice(range(1, -1, -1), 2))
    assert (nodes.element(node, 0), nodes.element(node, 1)) == (None, 1)

    class Faulty(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration") as info:
        nodes.element(nodes.SourceNode(sources.adapt(Faulty([1]))), 0)
    assert "reading the source, at index 0 (record key 0)" in "".join(info.value.__notes__)


def test_plain_nodes_have_one_record_for_each_element() -> None:
    below = source(1, 2)
    assert lineage.is_plain(stepped(below, "map", abs))
    assert lineage.is_plain(nodes.IndexNode(below, index_maps.Shuffle(2, 1)))
    assert not lineage.is_plain(stepped(nodes.BatchNode(below, batch_step(2)), "map", abs))
    assert not lineage.is_plain(nodes.FlatMapNode(below, flat_step(), 2))


def test_notes_are_made_once() -> None:
    def fails(x: int) -> int:
        raise LookupError(x)

    node = stepped(stepped(source(5), "map", fails), "map", abs)
    with pytest.raises(LookupError) as info:
        nodes.element(node, 0)
    assert len(info.value.__notes__) == 1
    assert faults.located(info.value, "elsewhere", "nowhere") is info.value
