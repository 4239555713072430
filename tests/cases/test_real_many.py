"""Real processes of one job: what one of them meets alone, all of them learn of, and none waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import grain_jax as grain
from tests.cases import many_job
from tests.product.jobs import job, results

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("no_process_left")]

LOST = "InvalidValueError: process 1 failed at batch"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("one_shard")


@pytest.fixture(scope="module")
def seen(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process saw, by scene; two jobs side by side play them, since most of it waits."""
    other = str(tmp_path_factory.mktemp("other_scenes"))
    apart = [*many_job.many_padding.SCENES, *many_job.many_terms.SCENES]
    rest = [name for name in many_job.SCENES if name not in apart]
    with (
        job("tests.cases.many_job", 2, str(folder), *rest) as processes,
        job("tests.cases.many_job", 2, other, *apart) as others,
    ):
        found = zip(results(processes, 240), results(others, 240), strict=True)
        return [{**theirs, **mine} for mine, theirs in found]


def x(*values: Any) -> dict[str, Any]:
    return {"x": list(values)}


def texts(step: Any) -> str:
    assert list(step) == ["error"], step
    return str(step["error"])


def test_a_mask_with_a_sharding_of_its_own_is_about_all_rows(seen: list[Any]) -> None:
    real = [[4, 4], [4, 4], [4, 1], [3, 0]]
    wanted = [
        {
            "x": [
                100 * k + 10 * p + row if row < counts[p] else 0 for p in (0, 1) for row in range(4)
            ],
            "mask": [[row < counts[p] for p in (0, 1) for row in range(4)]] * 2,
        }
        for k, counts in enumerate(real)
    ]
    assert [s["masks"] for s in seen] == [wanted] * 2


def padded(lengths: list[int], k: int, to: int) -> list[list[int]]:
    """Batch k of both processes, the rows of each so long, and zeros."""
    return [
        [10 * (4 * k + row) + p] * lengths[p] + [0] * (to - lengths[p])
        for p in (0, 1)
        for row in range(4)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_another_length_are_an_error_on_all_at_that_step(
    seen: list[Any], workers: int
) -> None:
    for scene in (s[f"ragged error {workers}"] for s in seen):
        assert scene[:2] == [{"x": padded([2, 2], 0, 2)}, {"x": padded([4, 4], 1, 4)}]
        assert len(scene) == 4
        for step in scene[2:]:
            assert (
                "batch['x'] is int32 with rows of shape (5,) on process 0 and int32 with rows of"
                " shape (3,) on process 1" in texts(step)
            )
            assert texts(step).endswith("Pass ragged='pad' to have them padded to the larger one.")


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_another_length_are_padded_where_asked_for(seen: list[Any], workers: int) -> None:
    wanted = [
        padded([2, 2], 0, 2),
        padded([4, 4], 1, 4),
        padded([5, 3], 2, 5),
        padded([3, 3], 3, 3),
    ]
    for scene in (s[f"ragged pad {workers}"] for s in seen):
        assert scene == [*({"x": value} for value in wanted), "the end"]


def test_dtypes_that_come_to_differ_are_an_error_on_all_at_that_step(seen: list[Any]) -> None:
    for scene in (s["dtypes"] for s in seen):
        assert scene[:2] == [x(*[0] * 8), x(*[1] * 8)]
        assert "is int16 with rows of shape () on process 0 and int32" in texts(scene[2])
        assert scene[3] == scene[2]


def test_leaves_without_axes_that_come_to_differ_are_an_error_on_all(seen: list[Any]) -> None:
    for scene in (s["scalars"] for s in seen):
        assert scene[:2] == [{"rate": 0}, {"rate": 1}]
        assert "batch['rate'] is 2 on process 0 and 3 on process 1" in texts(scene[2])


def test_shapes_that_change_where_a_pipeline_only_stacks_are_an_error_there(
    seen: list[Any],
) -> None:
    first, second = (s["plain"] for s in seen)
    assert first == [[8, 3]] * 5
    assert second[:4] == [[8, 3]] * 4
    assert "at batch 4, batch is int32 with rows of shape (4,), and was int32" in texts(second[4])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_whatever_kind_is_one_on_all(seen: list[Any], workers: int) -> None:
    first, second = (s[f"odd {workers}"] for s in seen)
    assert first.keys() == second.keys() >= {"Unspeakable", "Unpicklable", "Base", "Group"}
    for kind, ours in second.items():
        if kind == "KeyboardInterrupt":
            # In the trainer's own thread nobody can tell it from a Ctrl-C, which is no failure.
            assert "error" not in str(first[kind])
            continue
        assert [("error" in step) for step in ours] == [("error" in step) for step in first[kind]]
        assert "error" in str(ours)
        for mine, others in zip(ours, first[kind], strict=True):
            if "error" not in mine:
                assert mine == others
                continue
            assert texts(others).startswith(LOST)
            name = "BaseExceptionGroup" if kind == "Group" else kind
            assert f": {name}: " in texts(others)
            assert texts(mine).startswith(name)
        batches = [step["x"] for step in ours if "error" not in step]
        whole = [[*range(k, k + 4)] * 2 for k in (0, 4, 8)]
        assert batches == whole[: len(batches)]


def test_padding_that_cannot_be_made_is_an_error_on_all(seen: list[Any]) -> None:
    for keys, named in (s["padding refused"] for s in seen):
        for attempt in keys:
            assert "a leaf has rows of key<fry>, for which there are no zeros" in texts(attempt)
        for attempt in named:
            assert "cannot make padding of the structure PyTreeDef" in texts(attempt)


# The even records of process 0 in twos; of process 1 only the first batch is left.
OF_EACH = [
    [[0, 2], [4, 6], [8, 10], [12, 14], [16, 0]],
    [[1, 3], *([[0, 0]] * 4)],
]
REAL = [[[True] * 2] * 4 + [[True, False]], [[True] * 2] + [[False] * 2] * 4]


def test_padding_beside_batches_whose_texts_get_fewer(seen: list[Any]) -> None:
    for process, batches in enumerate(s["padding beside texts"] for s in seen):
        assert [batch["x"] for batch in batches] == OF_EACH[process]
        assert [batch["mask"] for batch in batches] == REAL[process]
    texts = [batch["t"] for batch in seen[0]["padding beside texts"]]
    assert texts == [[f"record {i}" for i in own] for own in [*OF_EACH[0][:4], [16]]]
    # As many as beside it, so that both processes have batches of one structure.
    assert [len(batch["t"]) for batch in seen[1]["padding beside texts"]] == [2, 2, 2, 2, 1]


def test_padding_has_the_structure_of_the_batch_beside_it(seen: list[Any]) -> None:
    for process, batches in enumerate(s["padding beside buckets"] for s in seen):
        wanted = []
        for rows, real in zip(OF_EACH[process], REAL[process], strict=True):
            half = "y" if len(wanted) % 2 == 0 else "a"
            wanted.append({"x": rows, half: [row / 2 for row in rows], "mask": real})
        assert batches == wanted


def bits(key: Any) -> int:
    return int(jax.random.bits(key, dtype=np.uint16))


def test_typed_keys(seen: list[Any]) -> None:
    split = [key for p in (0, 1) for key in jax.random.split(jax.random.key(p), 4)]
    for s in seen:
        assert s["typed keys"] == {
            "scalars": [bits(jax.random.key(k)) for k in range(3)],
            "rows": list(map(bits, split)),
            "shapes": [[], [8]],
            "dtype": "key<fry>",
        }
        assert s["padding with keys"] == [[0] * 4 + [1] * 4, bits(jax.random.key(7))]
        assert "batch['k'] is [0 0] on process 0 and [0 1] on process 1" in texts(s["other keys"])


def test_an_error_at_element_spec_is_one_on_all(seen: list[Any]) -> None:
    first, second = (s["spec"] for s in seen)
    batches = [x(*[*range(k, k + 4)] * 2) for k in (0, 4)]
    assert first[0] == [8]
    assert texts(first[1]) == (
        "InvalidValueError: process 1 failed at its first batch: OSError: the disk is gone"
    )
    assert texts(second[0]).startswith("OSError: the disk is gone")
    assert (first[2:], second[1:]) == (batches, batches)


def test_a_failure_at_a_step_that_was_certain_is_told_where_the_others_wait(
    seen: list[Any],
) -> None:
    first, second = (s["middle"] for s in seen)
    batches = [[k, k + 1] for k in range(0, 24, 4)]
    assert first[:-1] == batches
    assert second[:-1] == batches[:2]
    assert texts(second[-1]).startswith("OSError: the disk is gone")
    assert texts(first[-1]) == (
        "InvalidValueError: process 1 failed as it was asked for its next batch: OSError: the disk"
        " is gone. (This process keeps its own batch, and next() waits for the others again.)"
    )


def test_one_that_its_process_gets_over_is_none_on_the_others(seen: list[Any]) -> None:
    first, second = (s["middle, over it"] for s in seen)
    batches = [[k, k + 1] for k in range(0, 24, 4)]
    assert first == [*batches, "the end"]
    assert [step for step in second if "error" not in step] == first
    assert len(second) == len(first) + 1


def test_an_interrupt_reaches_a_process_that_waits_and_next_goes_on(seen: list[Any]) -> None:
    first, second = (s["interrupted"] for s in seen)
    batches = [[10 * k + p for p in (0, 1) for _ in range(4)] for k in range(4)]
    assert first["seen"] == [*batches, "the end"]
    stop = {"error": "KeyboardInterrupt: "}
    assert second["seen"] == [*batches[:2], stop, stop, *batches[2:], stop, "the end"]


def test_a_process_that_is_elsewhere_is_an_error_on_all(seen: list[Any]) -> None:
    assert all("ask the iterators in the same order" in texts(s["order"]) for s in seen)
    for s in seen:
        assert "has set another position (set_state)" in texts(s["moved"][-1])
    closed = seen[0]["closed"]
    assert "process 1 will not ask for it: it closed its iterator" in texts(closed[-1])


LEFT = (
    "InvalidValueError: process 1 will not ask for it: it closed its iterator. (This process keeps"
    " its own batch, and next() waits for the others again.)"
)


def test_an_iterator_that_one_process_drops_is_an_error_on_those_who_wait(seen: list[Any]) -> None:
    (first, error), (second, none) = (s["dropped"] for s in seen)
    assert second == [[100 * k + 10 + row for row in (0, 1)] for k in (0, 1)]
    assert first[:2] == [[100 * k + row for row in (0, 1)] for k in (0, 1)]
    assert none is None
    assert texts(error) == LEFT


@pytest.mark.parametrize("how", ["closed", "held"])
def test_who_fails_and_begins_anew_meets_the_others_there(seen: list[Any], how: str) -> None:
    (told, first), (failed, second) = (s[f"begins anew, {how}"] for s in seen)
    for process, batches in enumerate((first, second)):
        assert batches == [[100 * k + 10 * process + row for row in (0, 1)] for k in range(6)]
    # One error each: neither gives up before the other comes, however soon it tries again.
    assert failed == [{"error": "LookupError: a step fails"}]
    assert len(told) == 1
    if how == "closed":
        assert texts(told[0]) == LEFT
    else:
        assert "process 1 waits for a batch of another iterator" in texts(told[0])


def test_a_closed_iterator_stays_so_whatever_its_process_does_then(seen: list[Any]) -> None:
    assert texts(seen[0]["closed for another"]) == LEFT


def test_one_that_is_closed_after_the_end_is_an_error_on_those_who_begin_anew(
    seen: list[Any],
) -> None:
    batches = [x(*[*range(k, k + 4)] * 2) for k in (0, 4)]
    (first, none), (second, error) = (s["closed after the end"] for s in seen)
    assert first == second == [*batches, "the end"]
    assert none is None
    assert texts(error) == LEFT.replace("process 1", "process 0")


def test_nothing_stays_in_the_service_of_iterators_that_all_have_closed(seen: list[Any]) -> None:
    assert [s["what stays"] for s in seen] == [0, 0]


def test_an_iterator_that_is_closed_does_not_wait_for_others(seen: list[Any]) -> None:
    first, second = (s["closed by a thread"] for s in seen)
    batch = [x(0, 1, 2, 3, 10, 11, 12, 13)]
    assert (first[0], second) == (batch, [batch, None])
    assert texts(first[1]).startswith("ClosedError: this ")


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        ("failed before", "process 1 failed at batch 1: OSError: a bad file"),
        ("failed before, as it made", "process 1 failed as it made its loader: "),
    ],
)
def test_an_error_that_was_got_over_is_none_of_a_later_stage(
    seen: list[Any], scene: str, text: str
) -> None:
    wanted = [x(*(100 * k + 10 * p + row for p in (0, 1) for row in range(4))) for k in (0, 1)]
    assert text in texts(seen[0][scene][0])
    for s in seen:
        assert s[scene][1] == [*wanted, "the end"]


def test_a_restore_that_fails_on_one_process_is_an_error_on_all(seen: list[Any]) -> None:
    first, second = (s["orbax"] for s in seen)
    batch = [x(8, 10, 12, 14, 9, 11, 13, 15)]
    for s in (first, second):
        assert (s[1], s[4]) == (batch, batch)
        assert "DeviceIterator" in s[0]
        assert "DeviceIterator" in s[3]
    assert texts(second[2]).startswith("StateError: process_1-of-2.json is missing in")
    assert texts(first[2]).startswith(
        "InvalidValueError: process 1 failed as its position was restored: StateError: process_1-of"
    )


def test_a_position_that_one_process_refuses_is_an_error_on_all(seen: list[Any]) -> None:
    (_, first), (second, _) = (s["restore"] for s in seen)
    assert texts(second).startswith("StateError: this is no state")
    assert "process 1 failed as its position was set: StateError: this is no" in texts(first)


@pytest.mark.parametrize(
    ("scene", "what", "text"),
    [
        ("construction", "prefetch_to_device", "the last batch has 2 rows in every leaf"),
        ("loader", "loader", "num_records=9"),
    ],
)
def test_what_one_process_cannot_make_is_an_error_on_all(
    seen: list[Any], scene: str, what: str, text: str
) -> None:
    first, second = (s[scene] for s in seen)
    assert text in texts(second)
    assert "This process is one of 2 of a job." in texts(second)
    assert "os._exit(1)" in texts(second)
    assert f"process 1 failed as it made its {what}: InvalidValueError: " in texts(first)


def test_a_sampler_that_has_nothing_for_one_process_is_refused_on_all(seen: list[Any]) -> None:
    for s in seen:
        assert "leaves nothing of num_records=1 for some shards" in texts(s["sampler"])


def test_errors_of_one_process_are_no_hindrance_to_later_iterators(seen: list[Any]) -> None:
    wanted = [x(*(100 * k + 10 * p + row for p in (0, 1) for row in range(4))) for k in (0, 1)]
    assert [s["after"] for s in seen] == [[*wanted, "the end"]] * 2


@pytest.mark.parametrize("stage", [False, True])
def test_states_of_one_shard_restore_on_one_process(
    seen: list[Any], folder: Path, stage: bool
) -> None:
    wanted = [17, 19, 21, 23]
    assert [s["one shard"] for s in seen] == [[wanted, wanted]] * 2
    loader = many_job.one_shard_loader()
    iterator: Any = grain.prefetch_to_device(loader, remainder="pad") if stage else iter(loader)
    where = folder / ("stage" if stage else "loader")
    assert sorted(path.name for path in where.iterdir()) == [
        "process_0-of-2.json",
        "process_1-of-2.json",
    ]
    grain.checkpoint.CheckpointHandler().restore(where, iterator)
    assert next(iterator)["x"].tolist() == wanted
    iterator.close()


def on_both(seen: list[dict[str, Any]], scene: str) -> str:
    """The error that both processes had alike."""
    first, second = (s[scene] for s in seen)
    assert first == second
    assert first.startswith("InvalidValueError: ")
    return str(first)


AUTO = "mesh {'data': 4}, devices"


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("remainder", "remainder: 'drop' on process 0 and 'pad' on process 1"),
        ("mask_key", "mask_key: 'mask' on process 0 and 'real' on process 1"),
        ("axis", "axis: 0 on process 0 and 1 on process 1"),
        ("ragged", "ragged: 'error' on process 0 and 'pad' on process 1"),
        ("sharding", f"sharding: \"PartitionSpec('data'), {AUTO} 0, 1"),
        ("a tree", f"sharding['y']: \"PartitionSpec('data'), {AUTO} 0, 1"),
        ("mask sharding", f"sharding['mask']: \"PartitionSpec('data'), {AUTO} 0, 1"),
        ("devices", f"sharding: \"PartitionSpec('data'), {AUTO} 1, 0"),
        ("device_put", f"sharding: \"PartitionSpec('data'), {AUTO} 0, 1"),
    ],
)
def test_arguments_of_the_stage_that_differ_are_an_error_on_all(
    seen: list[Any], argument: str, text: str
) -> None:
    said = on_both(seen, f"arguments: {argument}")
    assert f"the arguments of the device stage differ: {text}" in said
    assert said.endswith("call prefetch_to_device or device_put with the same ones on each.")


SHUFFLED = "the order of records (sampler, seed, shuffle, slices): ['shuffle(records=48, seed=0)']"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("seed", f"{SHUFFLED} on process 0 and ['shuffle(records=48, seed=1)'] on process 1"),
        ("source", "the source's length: 48 on process 0 and 50 on process 1"),
        ("shuffle", f"{SHUFFLED} on process 0 and ['in order(records=48, seed=0)'] on process 1"),
        ("sampler", 'on process 0 and ["a sampler of one\'s own"] on process 1'),
        ("samplers of one's own", "where it ends (records times epochs): 48 on process 0 and 40"),
        ("epochs", "where it ends (records times epochs): 48 on process 0 and 96 on process 1"),
        ("an epoch", "where the stream begins: 0 on process 0 and 48 on process 1"),
        ("steps", "the steps that change counts or order: ['batch'] on process 0 and ['filter',"),
        ("batches", "sizes of batches: [2] on process 0 and [4] on process 1"),
        ("drop_remainder", "drop_remainder of batches: [True] on process 0 and [False] on process"),
        ("lanes", "lanes: 1 on process 0 and 2 on process 1"),
        ("shards", "number of shards: 2 on process 0 and 3 on process 1"),
        ("one shard", "the kind of sharding: 'loader' on process 0 and 'none' on process 1"),
        ("by the sampler", f"{SHUFFLED} on process 0 and ['shuffle(records=48, seed=1)'] on"),
        ("the same rows", f"{SHUFFLED} on process 0 and ['shuffle(records=48, seed=1)'] on"),
    ],
)
def test_pipelines_that_are_not_of_one_order_are_an_error_on_all(
    seen: list[Any], what: str, text: str
) -> None:
    said = on_both(seen, f"orders: {what}")
    assert "the processes do not load one order: " in said
    assert text in said


def test_shards_that_are_not_those_of_the_rows_are_an_error_on_all(seen: list[Any]) -> None:
    said = on_both(seen, "orders: twice the same shard")
    assert "process 0 and process 1 both load shard 1 of 2, and hold different rows" in said
    said = on_both(seen, "orders: shards of the same rows")
    assert "process 0 loads shard 0 of 2 and process 1 shard 1 of 2, and both hold" in said


HELD = (
    "InvalidValueError: process 0 and process 1 hold the same rows of the batch, and theirs would"
)


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        ("left out by one", "0 and 1 records were left out so far, by an ErrorPolicy"),
        ("left out by one, of workers", "0 and 1 records were left out so far, by an ErrorPolicy"),
        ("left out by each", "1 and 1 records were left out so far, by an ErrorPolicy"),
        ("short on one", "[4] and [3] rows of the batch are real"),
        ("missing on one", "one has a batch, and the other none"),
    ],
)
def test_rows_of_several_processes_that_come_to_differ_are_an_error_on_all(
    seen: list[Any], scene: str, text: str
) -> None:
    first, second = (s[f"same rows: {scene}"] for s in seen)
    assert first == second
    batch = [0, 1, 2, 3] if "left out" in scene else [0] * 4
    assert first[0] == batch
    for step in first[1:]:
        assert step.startswith(f"{HELD} differ: {text}")


def test_records_that_all_processes_with_the_same_rows_leave_out_are_no_error(
    seen: list[Any],
) -> None:
    for s in seen:
        assert s["same rows: left out by both"] == [*([0, 1, 2, 3], [4, 6, 7, 8], [9, 10, 11, 12])]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("source", "new", "used"),
    [
        ("elastic", "position 8 of the order", "position 16 of the order"),
        ("filtered", "batch 2", "batch 4"),
        ("mapped", "position 8 of the order", "position 16 of the order"),
        ("by sampler", "batch 2", "batch 4"),
        ("sliced", "batch 2", "batch 4"),
        ("own", "step 2", "step 4"),
    ],
)
def test_states_of_different_steps_are_an_error_on_all_and_those_of_one_are_not(
    seen: list[Any], source: str, new: str, used: str, workers: int
) -> None:
    scenes = [s[f"positions: {source} {workers}"] for s in seen]
    assert scenes[0]["new"] == scenes[1]["new"]
    assert scenes[0]["used"] == scenes[1]["used"]
    for scene in scenes:
        # Asked again, it is refused again.
        assert scene["new"][0] == scene["new"][1]
        assert f"InvalidValueError: process 0 stands at {new} and process 1" in scene["new"][0]
        assert f"InvalidValueError: process 0 stands at {used} and process 1" in scene["used"]
        assert scene["same"] == scene["wanted"]
        assert len(scene["wanted"]) == 2


def test_iterators_and_states_of_loaders_are_compared_too(seen: list[Any]) -> None:
    said = on_both(seen, "positions: begun")
    assert "process 0 stands at position 0 of the order and process 1 at position 4" in said
    said = on_both(seen, "positions: of loaders")
    assert "process 0 stands at position 8 of the order and process 1 at position 12" in said


def of_order(source: int, seed: int, positions: slice) -> list[int]:
    """Records of a shuffled epoch, as a loader without a stage gives them."""
    return [int(r) for r in list(grain.load(range(source), shuffle=True, seed=seed, num_epochs=1))][
        positions
    ]


def test_streams_that_say_nothing_of_each_other_may_differ(seen: list[Any]) -> None:
    for process, s in enumerate(seen):
        own = of_order((8, 10)[process], process, slice(8))
        assert s["alike: own sources"] == [
            *(
                [100 * process + a, 100 * process + b]
                for a, b in zip(own[::2], own[1::2], strict=True)
            ),
            *["the end"] * 2,
        ]
        assert s["alike: elsewhere"] == of_order(48, 0, slice(6 * process, 6 * process + 2))
        assert s["alike: one sharding in other words"] == [process] * 2


def test_a_process_that_ran_dry_or_counts_for_itself_restores_beside_others(
    seen: list[Any],
) -> None:
    assert [s["alike: dry"] for s in seen] == [
        [True, [0, 0], "the end"],
        [True, [110, 0], "the end"],
    ]
    assert [s["alike: absent"] for s in seen] == [[True, True], [False, True]]


def test_maps_of_another_name_are_warned_of_on_all(seen: list[Any]) -> None:
    for process, s in enumerate(seen):
        batches, told = s["alike: other maps"]
        mine = of_order(48, 0, slice(process, 8, 2))
        assert batches == [mine[:2], mine[2:]]
        assert len(told) == 1
        assert "steps on elements: ['map(Same)'] on process 0 and ['map(Alike)'] on" in told[0]


def test_terms_cost_no_message_of_their_own(seen: list[Any]) -> None:
    # Twelve batches each: one message at the first batch, and one at the end.
    assert [s["alike: messages"] for s in seen] == [[[12, 2], [12, 2]]] * 2


def test_states_of_one_shard_that_differ_are_refused(seen: list[Any], folder: Path) -> None:
    file = folder / "loader" / "process_1-of-2.json"
    text = file.read_text()
    state = json.loads(text)
    try:
        file.write_text(json.dumps({**state, "cursor": [1, 1]}))
        with pytest.raises(ValueError, match=r"differ .cursor.*the only shard is the"):
            grain.checkpoint.CheckpointHandler().restore(
                folder / "loader", iter(many_job.one_shard_loader())
            )
    finally:
        file.write_text(text)


def test_the_end_of_one_process_is_an_error_on_those_who_wait_for_it() -> None:
    with job("tests.cases.many_job", 2, "ends alone") as processes:
        outputs = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 1]
    assert "LookupError: no data here" in outputs[1][1]
    assert texts(json.loads(outputs[0][0])) == (
        "InvalidValueError: process 1 has ended, at the end of its program. (This process keeps its"
        " own batch, and next() waits for the others again.)"
    )


def test_a_process_that_closes_before_it_shuts_down_jax_leaves_nobody_waiting() -> None:
    with job("tests.cases.many_job", 2, "closes and shuts down") as processes:
        first, second = results(processes, 60)
    assert second == [[100 * k + 10 + row for row in (0, 1)] for k in (0, 1)]
    assert first[:2] == [[100 * k + row for row in (0, 1)] for k in (0, 1)]
    assert texts(first[-1]) == LEFT


def test_one_that_fails_and_tries_again_for_ever(seen: list[Any]) -> None:
    (first, mine), (second, theirs) = (s["fails again and again"] for s in seen)
    assert first == second == [8] * 4
    assert theirs == ["OSError: not yet"]
    (text,) = mine
    assert text.startswith("InvalidValueError: process 1 has failed ")
    assert " times, at last as it was asked for its next batch: OSError: not yet" in text
