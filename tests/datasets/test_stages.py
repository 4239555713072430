"""Stages: where a pipeline is cut, and what a unit of a stage gives."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from grain_jax import transforms
from grain_jax._algebra import sources, steps
from grain_jax._algebra.blocks import Block
from grain_jax._datasets import nodes, plan, roots, stages
from grain_jax._values import randomness

MAKERS: dict[str, Any] = {
    "map": lambda x: x,
    "random_map": lambda x, rng: int(rng.integers(2**40)),
    "map_with_index": lambda i, x: i,
    "filter": lambda x: x % 2,
    "flat_map": lambda x: [x] * (x % 3),
}


def made(*kinds: str) -> list[steps.Step]:
    """Steps by their names; "batch3" has 3 elements, "counter" counts the stream."""
    found: list[steps.Step] = []
    for number, kind in enumerate(kinds, 1):
        by_position = kind != "counter"
        name = "map_with_index" if kind == "counter" else kind.rstrip("0123456789")
        transform = (
            transforms.Batch(int(kind[5:]), batch_fn=list) if name == "batch" else MAKERS[name]
        )
        found.append(
            steps.step_for(name, transform, number=number, seed=1, by_position=by_position)
        )
    return found


@pytest.mark.parametrize(
    ("kinds", "gaps", "expected"),
    [
        # For each stage: steps, elements in a unit, and whether each unit gives one output.
        ([], False, [(0, 1, True)]),
        (["map", "batch4", "map"], False, [(3, 4, True)]),
        (["batch2", "batch3"], False, [(2, 6, True)]),
        (["filter", "map"], False, [(2, 1, False)]),
        (["filter", "batch4"], False, [(1, 1, False), (1, 4, True)]),
        (
            ["map", "flat_map", "map", "batch2", "batch2", "map"],
            False,
            [(3, 1, False), (3, 4, True)],
        ),
        (["batch2", "filter", "batch3"], False, [(2, 2, False), (1, 3, True)]),
        (["filter", "batch2", "filter", "batch2"], False, [(1, 1, 0), (2, 2, 0), (1, 2, 1)]),
        (["map", "batch2"], True, [(1, 1, False), (1, 2, True)]),
        (["filter", "map_with_index"], False, [(2, 1, False)]),
        (["filter", "counter"], False, [(1, 1, False), (1, 1, True)]),
        (["counter", "batch2"], False, [(2, 2, True)]),
    ],
)
def test_where_pipelines_are_cut(
    kinds: list[str], gaps: bool, expected: list[tuple[int, int, bool]]
) -> None:
    found = stages.cut(made(*kinds), gaps=gaps)
    assert [(len(s.steps), s.unit, s.counted) for s in found] == expected
    assert [s.depth for s in found] == list(range(len(found)))
    titles = [step.title for stage in found for step in stage.steps]
    assert titles == [step.title for step in made(*kinds)]


def test_what_runs_in_the_trainer_is_a_segment_of_its_own() -> None:
    found = stages.cut(made("map", "batch2", "map"), local_from=2)
    assert [(len(s.steps), s.local) for s in found] == [(2, False), (1, True)]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["batch2"], True),
        (["counter"], True),
        (["map"], False),
        (["filter"], False),
        (["map_with_index"], False),
    ],
)
def test_who_needs_every_element(kinds: list[str], expected: bool) -> None:
    assert stages.cut(made(*kinds))[0].needs_all == expected


def test_when_a_source_may_stack() -> None:
    def stacks(*todo: steps.Step) -> bool:
        return stages.cut(list(todo))[0].stacks_records

    plain = steps.step_for("batch", transforms.Batch(2), number=1)
    assert stacks(plain)
    assert stacks(plain, *made("map"))
    assert not stacks(*made("map"), plain)
    assert not stacks(*made("batch2"))  # its own function
    assert not stacks(plain, plain)
    assert not stacks()


@pytest.mark.parametrize("size", [1, 3])
def test_random_steps_behind_steps_that_change_counts(size: int) -> None:
    """Every element of a batch may come from another output of the same record."""
    first, second = stages.cut(made("flat_map", f"batch{size}", "random_map"))
    elements = first.run(Block([2, 1, 5], [7, 8, 9]), None, 0)
    assert elements.data == [2, 2, 1, 5, 5]
    assert elements.outputs == [0, 1, 0, 0, 1]
    group = elements.part(0, size)
    out = second.run(group, None, 0)
    last = size - 1
    rng = randomness.generator(1, group.positions[last], [0, 1, 0][last])
    assert out.data == [int(rng.integers(2**40))]
    assert list(out.positions) == [group.positions[last]]
    assert out.outputs == [[0, 1, 0][last]]


def test_a_stacked_unit_stands_where_its_last_record_stands() -> None:
    stage = stages.cut(
        [steps.step_for("batch", transforms.Batch(3), number=1), *made("random_map")]
    )[0]
    rngs = [np.random.default_rng(i) for i in range(3)]
    where = Block([], [4, 6, 8], rngs=list(rngs), ordinal=9, describe=lambda p: f"here {p}")
    out = stage.run_stacked(np.zeros(3), where, 0)
    assert out.data == [int(np.random.default_rng(2).integers(2**40))]
    assert (list(out.positions), out.ordinal) == ([8], 3)
    assert out.where(0) == "here 8"


def test_process_wide_draws_depend_on_the_unit() -> None:
    def stage(*todo: steps.Step) -> stages.Stage:
        return stages.cut(list(todo))[0]

    drawing = steps.step_for("map", lambda x: (x, random.random()), number=1)
    batch = steps.step_for("batch", transforms.Batch(2, batch_fn=list), number=2)
    state = random.getstate()
    try:
        one = stage(drawing, batch)
        assert one.seeded
        whole = one.run(Block([5, 6], [0, 1]), None, 3).data
        random.random()
        assert one.run(Block([5, 6], [0, 1]), None, 3).data == whole
        assert one.run(Block([5, 6], [2, 3]), None, 3).data != whole
        assert one.run(Block([5, 6], [0, 1]), None, 4).data != whole
    finally:
        random.setstate(state)
    assert not stage(*made("map", "batch2")).seeded


def test_a_plan_asks_its_root_whether_elements_may_be_absent() -> None:
    node = nodes.SourceNode(sources.adapt([1, 2, 3]))
    gaps = nodes.StepNode(node, made("filter")[0])
    todo = made("batch2")
    assert len(plan.Plan(roots.NodeRoot(node), todo).stages()) == 1
    assert len(plan.Plan(roots.NodeRoot(node), todo).stages(gaps=True)) == 2
    assert len(plan.Plan(roots.NodeRoot(gaps), todo).stages()) == 2
    assert len(plan.Plan(roots.NodeRoot(gaps, allow_nones=True), todo).stages()) == 1
    assert len(plan.Plan(plan.Upstream([1]), todo).stages()) == 1
