"""States that former versions wrote go on with the elements that those versions gave."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import grain_jax as grain
from tests.states import pipelines, write

pytestmark = [
    pytest.mark.usefixtures("no_process_left"),
    # Warns that it runs the stream again, once it has given something.
    pytest.mark.filterwarnings("ignore:.*without get_state and set_state"),
]
VERSIONS = sorted(path.name for path in write.DATA.iterdir())
each_version = pytest.mark.parametrize("version", VERSIONS)
STORED = [
    (version, kind)
    for version in VERSIONS
    for kind in pipelines.KINDS
    if version != "0.1.0" or kind not in pipelines.KINDS_0_2
]
each_stored = pytest.mark.parametrize(("version", "kind"), STORED)


def _stored(version: str, group: str, kind: str) -> Any:
    return json.loads((write.DATA / version / group / f"{write.file_name(kind)}.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def processes_are_kept() -> Iterator[None]:
    """What all loaders share stays, which makes each start in milliseconds."""
    with grain.load([0], worker_count=1) as idle:
        iter(idle)
        yield


@each_stored
def test_each_state_goes_on_as_it_did(kind: str, version: str) -> None:
    data = _stored(version, "iterators", kind)
    stream = data["stream"]
    for taken, state in data["states"].items():
        with contextlib.closing(pipelines.KINDS[kind]()) as iterator:
            iterator.set_state(write.parse(state))
            rest = write.take(iterator, len(stream) - int(taken))
            assert rest == stream[int(taken) :], (taken, state)
            if data["ends"]:
                assert next(iterator, None) is None


@pytest.mark.parametrize(
    ("version", "kind"), [pair for pair in STORED if pair[1] not in pipelines.ALONE]
)
def test_each_state_goes_on_with_workers(kind: str, version: str) -> None:
    data = _stored(version, "iterators", kind)
    stream = data["stream"]
    taken = str(len(stream) // 2)
    with contextlib.closing(pipelines.KINDS[kind](2)) as iterator:
        iterator.set_state(write.parse(data["states"][taken]))
        assert write.take(iterator, len(stream) - int(taken)) == stream[int(taken) :]


@each_stored
def test_each_checkpoint_goes_on_as_it_did(kind: str, version: str) -> None:
    folder = write.DATA / version / "checkpoints" / write.file_name(kind)
    stream = _stored(version, "iterators", kind)["stream"]
    with contextlib.closing(pipelines.KINDS[kind]()) as iterator:
        grain.checkpoint.CheckpointHandler().restore(folder, iterator)
        assert write.take(iterator, len(stream) - 3) == stream[3:]


@pytest.mark.parametrize("kind", pipelines.SUBSETS)
def test_states_of_slices_with_other_records_in_each_epoch_are_refused_by_name(kind: str) -> None:
    data = _stored("0.1.0", "subsets", kind)
    for state in data["states"].values():
        with contextlib.closing(pipelines.SUBSETS[kind]()) as iterator:
            with pytest.raises(grain.errors.StateError, match="a slice that is repeated"):
                iterator.set_state(write.parse(state))
            # The first epoch is as it was; the second batch of four reaches into the second.
            assert write.take(iterator, 1) == data["stream"][:1]


@each_version
@pytest.mark.parametrize("kind", pipelines.SHARDED)
def test_states_of_all_processes_go_on_with_other_numbers(kind: str, version: str) -> None:
    shards, _, restored_on = pipelines.SHARDED[kind]
    folder = write.DATA / version / "shards" / write.file_name(kind)
    rest = json.loads((folder / "shards.json").read_text())["rest"]
    assert sorted(rest) == [str(count) for count in restored_on]
    for count in restored_on:
        assert _restored(shards(count), folder / "checkpoint") == rest[str(count)]


def _restored(iterators: list[Any], folder: Path) -> list[list[Any]]:
    handler = grain.checkpoint.CheckpointHandler()
    for index, iterator in enumerate(iterators):
        with write.as_process(index, len(iterators)):
            handler.restore(folder, iterator)
    rest = [write.take(iterator) for iterator in iterators]
    for iterator in iterators:
        iterator.close()
    return rest


@each_version
@pytest.mark.parametrize("kind", pipelines.SHARDED)
def test_the_state_of_each_process_goes_on(kind: str, version: str) -> None:
    shards, saved_on, _ = pipelines.SHARDED[kind]
    folder = write.DATA / version / "shards" / write.file_name(kind)
    data = json.loads((folder / "shards.json").read_text())
    assert len(data["states"]) == saved_on
    for iterator, state, rest in zip(
        shards(saved_on), data["states"], data["rest"][str(saved_on)], strict=True
    ):
        iterator.set_state(write.parse(state))
        assert write.take(iterator) == rest
        iterator.close()


@each_version
@pytest.mark.parametrize("kind", pipelines.GRAIN)
def test_states_of_grain_go_on_as_grain_does(kind: str, version: str) -> None:
    settings = dict(pipelines.GRAIN[kind])
    settings.pop("worker_count", None)
    data = _stored(version, "grain", kind)
    for taken, state in data["states"].items():
        iterator = iter(pipelines.grain_loader(grain, **settings))
        iterator.set_state(write.parse(state))
        assert write.take(iterator) == data["stream"][int(taken) :]


@each_version
def test_a_state_of_grains_elastic_iterator_goes_on(version: str) -> None:
    stream = _stored(version, "iterators", "an elastic iterator")["stream"]
    iterator = pipelines.KINDS["an elastic iterator"]()
    iterator.set_state({"global_next_index": 12})
    assert write.take(iterator) == stream[2:]
