"""What a full batch is after a restore with batches of another size, if the source cannot say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors, transforms
from grain_jax._product.row_states import Saved, with_rows, without_rows
from tests import devices
from tests.product.pieces import Odd
from tests.product.shards import joint

Batch = transforms.Batch
RECORDS = 40


@pytest.mark.parametrize(
    ("lead", "before", "now", "expected"),
    [
        ((3,), (3,), (3,), (3,)),
        ((3,), (3,), (6,), (6,)),
        ((6,), (3,), (2,), (4,)),  # two rows for each record
        ((3,), (2,), (3,), None),  # a row and a half: who knows
        ((3,), None, None, (3,)),
        ((3,), None, (6,), None),
        ((3,), (3,), (3, 2), None),
        ((2, 4), (4, 2), (8, 2), (2, 8)),  # microbatches
        ((2, 4), (4, 2), (8, 3), (3, 8)),
        ((7, 4), (4,), (8,), (7, 8)),  # time before batch
        ((2,), (4, 2), (8, 2), (2,)),  # batches of batches, in rows of the outer ones
        ((2,), (4, 2), (4, 3), (3,)),
        (None, (3,), (6,), None),
    ],
)
def test_rows_follow_the_sizes_of_batches(lead: Any, before: Any, now: Any, expected: Any) -> None:
    assert Saved(lead, before).scaled(now) == expected


@pytest.mark.parametrize("inner", [{"next": 3}, b'{"next": 3}', b"no JSON"])
@pytest.mark.parametrize("saved", [Saved(), Saved((8,)), Saved((8,), (4,)), Saved((2, 8), (8, 2))])
def test_what_goes_in_comes_out(inner: Any, saved: Saved) -> None:
    axes = 1 if saved.lead is None else len(saved.lead)
    state, found = without_rows(with_rows(inner, saved), axes)
    assert (state, found) == (inner, saved)
    assert without_rows(inner, 1) == (inner, Saved())


@pytest.mark.parametrize(
    "damage",
    [
        {"batch_rows": -1},
        {"batch_rows": "8"},
        {"batch_rows": [8, 8]},
        {"batch_sizes": 4},
        {"batch_sizes": [0]},
        {"batch_sizes": [True]},
    ],
)
def test_damage_is_named(damage: dict[str, Any]) -> None:
    state = {**with_rows({"next": 3}, Saved((8,), (4,))), **damage}
    (field,) = damage
    with pytest.raises(errors.StateError, match=field):
        without_rows(state, 1)


class Scale(transforms.Map):
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "f": batch["i"] / 255}


class TimeFirst(transforms.Map):
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"i": np.stack([batch["i"]] * 3)}


def collect(records: list[Any]) -> dict[str, Any]:
    return {"i": np.array([record["i"] for record in records])}


FORMS: dict[str, tuple[Any, int]] = {
    "a map": (lambda size: [Batch(size), Scale()], 0),
    "a batch function": (lambda size: [Batch(size, batch_fn=collect)], 0),
    "time first": (lambda size: [Batch(size), TimeFirst()], 1),
    "microbatches": (lambda size: [Batch(size), Batch(2)], 1),
}


LAST = "microbatches"


def stage(operations: list[Any], axis: int, remainder: str, **settings: Any) -> Any:
    loader = grain.DataLoader(
        data_source={"i": np.arange(RECORDS)},
        sampler=grain.samplers.IndexSampler(RECORDS, num_epochs=1),
        operations=operations,
        **settings,
    )
    return grain.prefetch_to_device(loader, devices.first(), remainder=remainder, axis=axis)


def seen(batches: Any, axis: int) -> tuple[list[list[int]], list[int]]:
    """The records of each batch, and how many rows it has, those of padding too."""
    records, rows = [], []
    for batch in batches:
        i = np.asarray(batch["i"])
        rows.append(i.shape[axis])
        if "mask" in batch:
            i = i[np.asarray(batch["mask"])]
        records.append(np.unique(i).tolist())
    return records, rows


@pytest.mark.parametrize(
    ("form", "remainder"),
    # Microbatches of unequal lengths do not stack, so there is nothing to pad.
    [(form, how) for form in FORMS for how in ("drop", "pad") if (form, how) != (LAST, "pad")],
)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_another_batch_size_goes_on_at_the_same_record(
    form: str, remainder: str, size: int
) -> None:
    make, axis = FORMS[form]
    step = 2 if form == "microbatches" else 1
    with stage(make(4), axis, remainder) as begun:
        for _ in range(2):
            next(begun)
        state = begun.get_state()
    with stage(make(size), axis, remainder) as other:
        other.set_state(state)
        records, rows = seen(other, axis)
    rest = list(range(8 * step, RECORDS))
    wanted = [rest[i : i + size * step] for i in range(0, len(rest), size * step)]
    if remainder == "drop":
        wanted = [batch for batch in wanted if len(batch) == size * step]
    assert records == wanted
    assert rows == [size] * len(wanted)


@pytest.mark.parametrize("form", ["a map", "a batch function", "time first"])
@pytest.mark.parametrize("steps", [3, 5, 6])
def test_a_joined_shard_that_has_run_dry_does_not_make_batches_smaller(
    form: str, steps: int
) -> None:
    """Of two shards the odd numbers are all on one, so that the other one never has any."""
    make, axis = FORMS[form]

    class KeepsFew(transforms.Filter):
        def filter(self, record: Any) -> bool:
            return bool(record["i"] % 2 or record["i"] < 12)

    def run(count: int) -> list[Any]:
        shards = [grain.sharding.ShardOptions(index, count) for index in range(count)]
        return [
            stage([KeepsFew(), *make(4 // count)], axis, "pad", shard_options=shard)
            for shard in shards
        ]

    begun = run(2)
    for _ in range(steps):
        for iterator in begun:
            next(iterator, None)
    state = joint(begun)
    (one,) = run(1)
    one.set_state(state)
    records, rows = seen(one, axis)
    first, second = [0, 2, 4, 6, 8, 10], list(range(1, RECORDS, 2))
    halves = [[half[i : i + 2] for i in range(0, len(half), 2)] for half in (first, second)]
    wanted = [sorted(sum((h[k] for h in halves if k < len(h)), [])) for k in range(10)]  # noqa: RUF017
    assert records == wanted[steps:]
    assert rows == [4] * len(records)
    for iterator in [*begun, one]:
        iterator.close()


class Same(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return element


def test_a_state_says_the_sizes_beside_the_rows() -> None:
    with stage([Odd2(), Batch(4), Batch(2), Same()], 1, "drop") as iterator:
        next(iterator)
        state = json.loads(iterator.get_state())
    assert (state["batch_rows"], state["batch_sizes"]) == ([2, 4], [4, 2])


class Odd2(Odd):
    def filter(self, element: Any) -> bool:
        return super().filter(element["i"])
