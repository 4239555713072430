"""Records that contain themselves: nodes that know their parents."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def tree(index: int) -> dict[str, Any]:
    root: dict[str, Any] = {"name": f"r{index}", "children": [], "x": np.full(2, index)}
    root["children"] = [{"name": f"c{k}", "parent": root} for k in range(2)]
    return root


def in_a_tuple(index: int) -> tuple[Any, ...]:
    inside: list[Any] = [index]
    whole = (f"r{index}", inside)
    inside.append(whole)
    return whole


class Trees:
    """Makes its records."""

    def __init__(self, make: Any = tree) -> None:
        self.make = make

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Kept(Trees):
    """Holds its records."""

    def __init__(self, make: Any = tree) -> None:
        self.records = [make(index) for index in range(3)]

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


class Make(grain.transforms.Map):
    def __init__(self, make: Any = tree) -> None:
        self.make = make

    def map(self, element: int) -> Any:
        return self.make(element)


class Cached(grain.transforms.Map):
    """Keeps what it returns."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def map(self, element: int) -> Any:
        return self.kept.setdefault(element, tree(element))


class Check(grain.transforms.Map):
    """Changes a record and looks whether the change is seen by way of its children."""

    def map(self, element: Any) -> Any:
        assert element["name"].startswith("r")
        assert len(element["name"]) == 2
        element["name"] += "!"
        return element["children"][1]["parent"]["name"]


class All(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return True


def elements(source: Any, *steps: Any, workers: int, epochs: int = 2) -> list[Any]:
    with grain.load(
        source, num_epochs=epochs, transformations=steps, worker_count=workers
    ) as loader:
        return list(loader)


@WORKERS
def test_an_operation_gets_a_record_that_is_its_own(workers: int) -> None:
    right = ["r0!", "r1!", "r2!"] * 2
    for source in (Trees(), Kept(), [tree(i) for i in range(3)]):
        assert elements(source, Check(), workers=workers) == right
    for make in (Make(), Cached()):
        assert elements(range(3), make, Check(), workers=workers) == right
        assert elements(range(3), make, All(), Check(), workers=workers) == right


@WORKERS
def test_an_element_is_what_it_was(workers: int) -> None:
    for source, steps in ((Trees(), ()), (Kept(), ()), (range(3), (Make(),))):
        found = elements(source, *steps, workers=workers, epochs=1)
        assert [one["name"] for one in found] == ["r0", "r1", "r2"]
        assert all(child["parent"] is one for one in found for child in one["children"])
        assert [one["x"].tolist() for one in found] == [[0, 0], [1, 1], [2, 2]]
    for source, steps in ((Trees(in_a_tuple), ()), (Kept(in_a_tuple), ())):
        found = elements(source, *steps, workers=workers, epochs=1)
        assert [(one[0], one[1][0], one[1][1] is one) for one in found] == [
            ("r0", 0, True),
            ("r1", 1, True),
            ("r2", 2, True),
        ]


@WORKERS
def test_what_a_record_refers_to_twice_is_one_object(workers: int) -> None:
    class Twice:
        def __init__(self) -> None:
            self.lists = [[i] for i in range(3)]

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return {"a": self.lists[index], "b": [self.lists[index]]}

    class Add(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            element["a"].append(9)
            return element

    right = [{"a": [i, 9], "b": [[i, 9]]} for i in range(3)] * 2
    assert elements(Twice(), Add(), workers=workers) == right


@WORKERS
def test_a_batch_of_them_is_refused(workers: int) -> None:
    with (
        grain.load(Trees(), num_epochs=1, batch_size=2, worker_count=workers) as loader,
        pytest.raises(grain.errors.StackError, match=r"contains itself .* before Batch"),
    ):
        next(iter(loader))


@dataclasses.dataclass
class Node:
    name: str
    lock: Any
    nodes: list[Any]


def test_records_of_a_list_that_do_not_pickle() -> None:
    node = Node("n", threading.Lock(), [])
    node.nodes.append(node)
    other: dict[str, Any] = {"lock": node.lock, "x": np.zeros(2)}
    other["itself"] = other
    with pytest.warns(UserWarning, match="does not pickle"):
        found = elements([node, other], workers=0, epochs=1)
    assert found[0] is not node
    assert found[0].nodes[0] is found[0]
    assert found[1] is not other
    assert found[1]["itself"] is found[1]
    assert not found[1]["x"].flags.writeable


@WORKERS
def test_records_of_a_list_with_arrays_of_objects(workers: int) -> None:
    records = []
    for i in range(3):
        record: dict[str, Any] = {"name": f"r{i}", "x": np.array([i, "a"], object)}
        record["itself"] = [record]
        records.append(record)
    found = elements(records, workers=workers, epochs=1)
    assert [one["itself"][0]["name"] for one in found] == ["r0", "r1", "r2"]
    assert not any(one["x"].flags.writeable for one in found)
