"""Campaign: damaged states and checkpoint files restore exactly or are refused."""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import grain_jax as grain
from tests.faults import campaign, mutations

__all__ = ["run"]

RECORDS = 24
_LOOK = 12  # elements of a restored stream that are compared


class _Odd(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element % 2)


class _Twice(grain.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: Any) -> list[Any]:
        return [element, element + 1000]


class _Named(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return {"data": element}


class _Counted:
    """A running sum without a state: restored by running again."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, records: Iterator[Any]) -> Iterator[Any]:
        for record in records:
            self.total += int(record.data)
            yield grain.Record(record.metadata, self.total)


class _Total(_Counted):
    """The same with a state, checked as it is restored."""

    def get_state(self) -> int:
        return self.total

    def set_state(self, state: Any) -> None:
        if type(state) is not int:
            raise ValueError(f"no sum: {state!r}")
        self.total = state


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A kind of pipeline.

    Attributes:
      make: returns a new iterator.
      in_order: whether what follows any position is a stretch of the whole stream.
      more_states: returns states of it that it does not give itself.
    """

    make: Callable[[], Any]
    in_order: bool = True
    more_states: Callable[[], list[Any]] = list


def _loader(*operations: Any, **settings: Any) -> Callable[[], Any]:
    settings.setdefault(
        "sampler", grain.samplers.IndexSampler(RECORDS, shuffle=True, seed=3, num_epochs=2)
    )
    return lambda: iter(
        grain.DataLoader(data_source=range(RECORDS), operations=list(operations), **settings)
    )


def _device(*operations: Any) -> Callable[[], Any]:
    def make() -> Any:
        import jax

        batches = _loader(*operations, _Named(), grain.transforms.Batch(5))()
        return grain.prefetch_to_device(batches, jax.devices()[0], remainder="pad")

    return make


def _halves() -> list[Any]:
    shards = [grain.sharding.ShardOptions(index, 2) for index in range(2)]
    half = grain.transforms.Batch(2)
    return [_loader(_Odd(), half, shard_options=shard)() for shard in shards]


def _joint_states() -> list[bytes]:
    """The states of two shards together, at each step."""
    halves, states = _halves(), []
    for _ in range(RECORDS // 2):
        both = [json.loads(half.get_state()) for half in halves]
        states.append(json.dumps({"processes": both}).encode())
        for half in halves:
            next(half, None)
    return states


def _joined() -> Any:
    """An iterator over two shards as one."""
    iterator = _loader(_Odd(), _BATCH)()
    iterator.set_state(_joint_states()[0])
    return iterator


_BATCH = grain.transforms.Batch(4)
_SHARD = grain.sharding.ShardOptions(1, 3)
_SHARDED = grain.samplers.IndexSampler(RECORDS, _SHARD, shuffle=True, seed=3, num_epochs=2)
_DATASET = grain.MapDataset.range(RECORDS).seed(5).shuffle()

KINDS = {
    "records": _Kind(_loader()),
    "batches": _Kind(_loader(_BATCH)),
    "a shard": _Kind(_loader(_BATCH, shard_options=_SHARD), in_order=False),  # of any shard count
    "a sampler's shard": _Kind(_loader(_BATCH, sampler=_SHARDED)),
    "a filter": _Kind(_loader(_Odd(), _BATCH)),
    "a flat map": _Kind(_loader(_Twice(), _Odd(), _BATCH)),
    "lanes": _Kind(_loader(_Odd(), _BATCH, lanes=3), in_order=False),
    "joined shards": _Kind(_joined, in_order=False, more_states=_joint_states),
    "an operation": _Kind(_loader(_Total()), in_order=False),
    "an operation run again": _Kind(_loader(_Counted()), in_order=False),
    "a dataset": _Kind(lambda: iter(_DATASET.repeat(2).batch(4).to_iter_dataset())),
    "a stream": _Kind(lambda: iter(_DATASET.to_iter_dataset().filter(_odd).batch(4))),
    "the device stage": _Kind(_device()),
    # Here it keeps the rows of a batch in the state; a wrong number is an error at the next batch.
    "the device stage after a filter": _Kind(_device(_Odd()), in_order=False),
}


def _odd(element: Any) -> bool:
    return bool(element % 2)


def _flat(elements: list[Any]) -> list[int]:
    rows = [np.asarray(e["data"])[e["mask"]] if isinstance(e, dict) else e for e in elements]
    return [int(x) for row in rows for x in np.ravel(row)]


def _first(iterator: Any, most: int = 1000) -> list[Any]:
    return [element for element, _ in zip(iterator, range(most), strict=False)]


@dataclasses.dataclass
class _Subject:
    kind: _Kind
    states: list[Any]  # after 0, 1, 2 ... elements
    stream: list[int]

    @classmethod
    def of(cls, kind: _Kind) -> _Subject:
        iterator = kind.make()
        states, elements = [iterator.get_state()], []
        for element in iterator:
            elements.append(element)
            states.append(iterator.get_state())
        iterator.close()
        return cls(kind, states + kind.more_states(), _flat(elements))


def run(count: int, seed: int) -> Counter[str]:
    """Restores damaged states: each gives a position of its pipeline, or the documented error."""
    counts: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a state of a changed pipeline may warn
        subjects = {name: _Subject.of(kind) for name, kind in KINDS.items()}
        names = list(subjects)
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            name = names[number % len(names)]
            other = subjects[rng.choice([name, name, rng.choice(names)])]
            try:
                _one(subjects[name], other, rng, counts)
            except BaseException as error:
                error.add_note(f"at number {number} of seed {seed}, a state of {name}")
                raise
    return counts


def _one(subject: _Subject, other: _Subject, rng: random.Random, counts: Counter[str]) -> None:
    iterator = subject.kind.make()
    try:
        _first(iterator, rng.randint(0, 2))
        before = iterator.get_state()
        state = rng.choice(other.states)
        try:
            if rng.random() < 0.3:
                _restore_files(iterator, state, rng.choice(subject.states), rng)
            else:
                iterator.set_state(_damaged(state, rng))
        except ValueError:
            assert iterator.get_state() == before, "a refused state moved the position"
            counts["refused"] += 1
            if rng.random() < 0.1:
                _check_stream(subject, iterator)
        else:
            counts["restored"] += 1
            try:
                _check_stream(subject, iterator)
            except ValueError as error:
                # What only the next batch shows: its rows, and shards of different steps.
                if not any(word in str(error) for word in ("rows", "different steps")):
                    raise
    finally:
        iterator.close()
    counts["states"] += 1


def _damaged(state: Any, rng: random.Random) -> Any:
    if isinstance(state, bytes):
        if rng.random() < 0.5:
            return mutations.mutate_bytes(state, rng)
        return json.dumps(_mutated(json.loads(state), rng)).encode()
    return _mutated(state, rng)


def _mutated(value: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        value = mutations.mutate_value(value, rng)
    return value


def _restore_files(iterator: Any, state: Any, other: Any, rng: random.Random) -> None:
    handler = grain.checkpoint.CheckpointHandler()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "process_0-of-1.json").write_bytes(_as_bytes(state))
        mutations.mutate_files(folder, _as_bytes(other), rng)
        handler.restore(folder, item=iterator)


def _as_bytes(state: Any) -> bytes:
    return state if isinstance(state, bytes) else json.dumps(state).encode()


def _streams(state: Any) -> int:
    """Returns how many streams a state puts side by side: lanes, or shards that it joins."""
    fields = json.loads(_as_bytes(state))
    return int(fields.get("lanes", 1)) * (fields.get("joined") or 1)


def _check_stream(subject: _Subject, iterator: Any) -> None:
    """Checks that what follows is what follows some position, and that its state says which."""
    again = subject.kind.make()
    again.set_state(iterator.get_state())
    found = _flat(_first(iterator, _LOOK))
    assert _flat(_first(again, _LOOK)) == found, "the state after a restore says something else"
    again.close()
    if subject.kind.in_order and _streams(iterator.get_state()) == 1:
        starts = range(len(subject.stream) + 1)
        assert any(subject.stream[s : s + len(found)] == found for s in starts), found


if __name__ == "__main__":
    campaign.main(run, "states", 10_000)
