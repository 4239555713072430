"""Two real processes take the same number of steps, whatever each of them has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.product.jobs import job, results

pytestmark = pytest.mark.timeout(300)

SHARDED = [16, 17, 19, 23]
FILTERED = [[8, 8], [8, 16], [6, 16], [0, 8]]


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What each process saw, by scene; one job plays all of them."""
    with job("tests.product.lockstep_job", 2) as processes:
        return results(processes)


def of_shards(records: int) -> list[list[list[int]]]:
    """For each step the records of each process: full global batches, and the rest dealt out."""
    steps = [list(range(k, min(k + 8, records))) for k in range(0, records, 8)]
    return [[step[0::2], step[1::2]] for step in steps]


def of_filter(kept: list[int]) -> list[list[list[int]]]:
    """The same where process p keeps the first `kept[p]` records of its shard."""
    batches = [
        [list(range(2 * start + p, 2 * min(start + 4, n) + p, 2)) for start in range(0, n, 4)]
        for p, n in enumerate(kept)
    ]
    steps = max(map(len, batches))
    return [[own[k] if k < len(own) else [] for own in batches] for k in range(steps)]


def expected(steps: list[list[list[int]]], rule: str) -> list[dict[str, Any]]:
    """What the rule makes of these steps."""
    if rule != "pad":
        return [{"id": [i for own in step for i in own]} for step in steps]
    return [
        {
            "id": [i for own in step for i in own + [0] * (4 - len(own))],
            "mask": [int(i < len(own)) for own in step for i in range(4)],
        }
        for step in steps
    ]


def full_steps(steps: list[list[list[int]]]) -> list[list[list[int]]]:
    return [step for step in steps if all(len(own) == 4 for own in step)]


def check(got: list[dict[str, Any]], steps: list[list[list[int]]], rule: str) -> None:
    """Both processes had these steps, the end after them, and their own texts."""
    for process, scene in enumerate(got):
        assert scene["then"] == "the end"
        values = [{k: step[k] for k in ("id", "mask") if k in step} for step in scene["steps"]]
        assert values == expected(steps, rule)
        for step, own in zip(scene["steps"], steps, strict=True):
            texts = [f"record {i}" for i in own[process]]
            assert step["text"] == texts + [None] * (4 - len(texts))


@pytest.mark.parametrize("records", SHARDED)
@pytest.mark.parametrize("rule", ["drop", "pad"])
def test_shards_of_known_length(seen: list[Any], records: int, rule: str) -> None:
    steps = of_shards(records)
    if rule == "drop":
        steps = full_steps(steps)
    check([s["equal_steps"][f"sharded {records} {rule}"] for s in seen], steps, rule)
    assert [s["lengths"][f"{records} {rule}"] for s in seen] == [len(steps)] * 2


@pytest.mark.parametrize("records", SHARDED)
def test_shards_of_known_length_and_a_last_step_that_is_short_somewhere(
    seen: list[Any], records: int
) -> None:
    got = [s["equal_steps"][f"sharded {records} error"] for s in seen]
    if records % 8 == 0:
        check(got, of_shards(records), "error")
        return
    for process, scene in enumerate(got):
        own = len(of_shards(records)[-1][process])
        assert f"the last batch has {own} rows in every leaf" in scene["refused"]


@pytest.mark.parametrize("kept", FILTERED)
@pytest.mark.parametrize("rule", ["drop", "pad"])
def test_a_filter_leaves_different_numbers(seen: list[Any], kept: list[int], rule: str) -> None:
    got = [s["equal_steps"][f"filtered {kept} {rule}"] for s in seen]
    steps = of_filter(kept)
    if rule == "drop" and 0 in kept:
        for scene in got:
            assert "process 0 has no batch at all, and process 1 has one" in scene["refused"]
        return
    check(got, full_steps(steps) if rule == "drop" else steps, rule)
    for scene in got:
        assert all((step["scale"], step["kind"]) == (0.5, "train") for step in scene["steps"])


def test_a_filter_leaves_different_numbers_and_that_is_an_error(seen: list[Any]) -> None:
    scenes = {
        str(kept): [s["equal_steps"][f"filtered {kept} error"] for s in seen] for kept in FILTERED
    }
    check(scenes["[8, 8]"], of_filter([8, 8]), "error")
    for scene in scenes["[8, 16]"]:
        assert "process 0 has no batch after 2, and process 1 has one" in scene["refused"]
    first, second = scenes["[6, 16]"]
    assert "batch['id'] has 2 rows (shape (2,)) in a stream" in first["refused"]
    assert "process 0 failed at batch 1: InvalidValueError: batch['id']" in second["refused"]
    for scene in scenes["[0, 8]"]:
        assert "process 0 has no batch at all, and process 1 has one" in scene["refused"]


def test_states_at_each_step_are_equal_and_go_on_there(seen: list[Any]) -> None:
    first, second = (s["positions"] for s in seen)
    assert first == second
    assert [json.loads(state)["position"] for state in first["states"]] == [0, 8, 9]
    values = [step["id"] for step in expected(of_shards(9), "pad")]
    assert first["seen"] == values
    assert first["again"] == [values[step:] for step in range(3)]


def test_a_process_that_ran_dry_goes_on_so_after_a_restore(seen: list[Any]) -> None:
    values = [step["id"] for step in expected(of_filter([4, 16]), "pad")]
    for scene in (s["dry_positions"] for s in seen):
        assert scene["seen"] == values
        assert scene["again"] == [values[step:] for step in range(1, 5)]


def test_leaving_moving_and_closing_in_the_middle_leaves_nobody_waiting(seen: list[Any]) -> None:
    one, two = ([i for own in step for i in own] for step in of_filter([16, 16])[:2])
    for scene in (s["stops_early"] for s in seen):
        assert scene == [one, two, two] * 3


def test_an_error_of_one_process_is_an_error_on_all_at_the_same_step(seen: list[Any]) -> None:
    text = "OSError: the disk is gone"
    assert [s["fails_later"] for s in seen] == [
        {"steps": 2, "error": f"InvalidValueError: process 1 failed at batch 2: {text}"},
        {"steps": 2, "error": text},
    ]


def test_without_the_coordination_service_collectives_carry_the_messages(seen: list[Any]) -> None:
    for s in seen:
        assert s["through_collectives"] == s["equal_steps"]["filtered [6, 16] pad"]["steps"]


def test_specs_of_the_global_batch_are_known_before_it_is_taken(seen: list[Any]) -> None:
    for shape, dtype, text, state in (s["specs"] for s in seen):
        assert (shape, dtype, text) == ([8], "int32", "(4,)")
        assert json.loads(state)["position"] == 0
