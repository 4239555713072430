"""Snapshots: what is copied, what is shared, and what cannot be copied."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from grain_jax import IterDataset, MapDataset
from grain_jax._algebra import sources, steps, transforms
from grain_jax._datasets.iter_dataset import plan_of
from grain_jax._datasets.plan import Plan, Upstream
from grain_jax._execution.snapshots import of_plan, snapshot


class Add(transforms.Map):
    def __init__(self, amount: int, table: Any = None) -> None:
        self.amount, self.table = amount, table

    def map(self, element: Any) -> Any:
        return element + self.amount


@dataclasses.dataclass
class Locked(Add):
    amount: int
    values: list[int]

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


def amounts(plan: Plan) -> list[int]:
    return [step.function(0) for step in plan.steps if step.function is not None]


def test_later_changes_do_not_show() -> None:
    add = Add(1, table=[1, {"a": 2}])
    copied = snapshot(add)
    add.amount, add.table[1]["a"] = 10, 20
    assert (copied.amount, copied.table) == (1, [1, {"a": 2}])
    assert copied.map(0) == 1


def test_arrays_sources_functions_and_classes_are_shared() -> None:
    class Local:
        pass

    table, source = np.zeros(3), sources.adapt(range(2))
    things = [table, source, Local, len, np.add, np, lambda x: x]
    assert all(a is b for a, b in zip(snapshot(things), things, strict=True))
    assert snapshot(Add(1, table)).table is table


def test_a_container_is_looked_at_once_and_is_the_same_wherever_it_is_used() -> None:
    numbers = [1, 2]
    source = sources.adapt(numbers)
    first, second = snapshot([source, source])
    numbers[0] = 10
    numbers.append(3)
    assert first is second
    assert first.read(np.arange(2)) == [1, 2]
    assert snapshot(source).read(np.arange(3)) == [10, 2, 3]


def test_what_does_not_pickle_is_copied_one_level_deep() -> None:
    locked = Locked(1, [1])
    copied = snapshot(locked)
    assert copied is not locked
    locked.amount = 10
    assert copied.amount == 1
    assert copied.lock is locked.lock


def test_what_cannot_be_copied_is_returned() -> None:
    class Never:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise OSError("never")

    never = Never()
    assert snapshot(never) is never


def test_the_steps_of_a_plan() -> None:
    add = Add(1)
    dataset = MapDataset.range(3).map(add).to_iter_dataset().map(add).map(add)
    plan = plan_of(dataset)
    frozen = of_plan(plan)
    add.amount = 5
    assert amounts(plan) == [5, 5]
    assert amounts(frozen) == [1, 1]
    # The map of the random-access part is in the root.
    assert list(dataset) == [15, 16, 17]
    first, second = (step.function.__self__ for step in frozen.steps)  # type: ignore[union-attr]
    assert first is second


def test_one_step_that_does_not_pickle_leaves_the_others_copied() -> None:
    add, locked = Add(1), Locked(2, [])
    plan = plan_of(MapDataset.range(3).to_iter_dataset().map(add).map(locked))
    frozen = of_plan(plan)
    add.amount = 100
    assert amounts(frozen) == [1, 2]


def test_a_dataset_of_the_users_own_is_shared() -> None:
    class Mine(MapDataset[int]):
        reads = 0

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return int(index)

    class Stream(IterDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    mine, stream = Mine(), Stream()
    assert list(mine.map(lambda x: x + 1)) == [1, 2, 3]
    assert mine.reads == 3
    frozen = of_plan(plan_of(stream.map(lambda x: x)))
    assert isinstance(frozen.root, Upstream)
    assert frozen.root.dataset is stream


@pytest.mark.parametrize("kind", ["map", "filter"])
def test_bound_methods_keep_their_copied_object(kind: str) -> None:
    add = Add(1)
    step = snapshot(steps.step_for(kind, add.map, number=1))
    add.amount = 7
    assert step.function is not None
    assert step.function(0) == 1
