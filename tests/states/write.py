"""Writes the states of all pipelines, and what comes after each, as test data.

Run once, by the version whose states are to be kept: `python -m tests.states.write NAME` writes
`tests/states/data/NAME`. Data of a former version is never written again.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import grain_jax as grain
from tests.states import pieces, pipelines

__all__ = ["DATA", "MOST", "as_process", "dump", "file_name", "parse", "take"]

DATA = Path(__file__).parent / "data"
# Streams without an end are stored up to here.
MOST = 60


def dump(state: Any) -> Any:
    """A state as JSON holds it: bytes as text."""
    if not isinstance(state, bytes):
        return {"json": state}
    try:
        return {"text": state.decode("ascii")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(state).decode()}


def parse(stored: Any) -> Any:
    """The state that `dump` was given."""
    ((kind, state),) = stored.items()
    if kind == "base64":
        return base64.b64decode(state)
    return state.encode() if kind == "text" else state


def take(iterator: Any, most: int = MOST) -> list[Any]:
    """The next elements, as JSON holds them."""
    return [pieces.plain(element) for element in itertools.islice(iterator, most)]


def as_process(index: int, count: int) -> contextlib.AbstractContextManager[Any]:
    """Makes this process one of several in the eyes of the checkpoint handler."""
    return mock.patch.multiple("jax", process_index=lambda: index, process_count=lambda: count)


def main(name: str) -> None:
    """Writes everything."""
    warnings.simplefilter("ignore")  # an operation without a state is run again, and says so
    folder = DATA / name
    for group, kinds in (("iterators", pipelines.KINDS), ("subsets", pipelines.SUBSETS)):
        for kind, make in kinds.items():
            with_workers = kind not in pipelines.ALONE
            _write(folder / group / f"{file_name(kind)}.json", _one(make, with_workers))
            if group == "iterators":
                _checkpoint(folder / "checkpoints" / file_name(kind), make)
    for kind, (shards, saved_on, restored_on) in pipelines.SHARDED.items():
        _sharded(folder / "shards" / file_name(kind), shards, saved_on, restored_on)
    for kind, case in pipelines.GRAIN.items():
        _write(folder / "grain" / f"{file_name(kind)}.json", _of_grain(case))


def file_name(kind: str) -> str:
    """The name of what is stored for a kind of pipeline."""
    return kind.replace(",", "").replace("'", "").replace(" ", "_")


def _one(make: Any, with_workers: bool) -> dict[str, Any]:
    """The stream, and the states before some of its elements and at its end."""
    with contextlib.closing(make()) as iterator:
        states, stream = [iterator.get_state()], []
        for element in itertools.islice(iterator, MOST):
            stream.append(pieces.plain(element))
            states.append(iterator.get_state())
    last = len(stream)
    taken = sorted({0, 1, 2, last // 2, last // 2 + 1, max(last - 1, 0), last})
    for number in taken:
        with contextlib.closing(make()) as iterator:
            iterator.set_state(states[number])
            assert take(iterator, last - number) == stream[number:]
    if with_workers:
        with contextlib.closing(make(2)) as iterator:
            take(iterator, last // 2)
            assert iterator.get_state() == states[last // 2], "workers are part of the state"
    return {
        "stream": stream,
        "ends": last < MOST,
        "states": {str(number): dump(states[number]) for number in taken},
    }


def _checkpoint(folder: Path, make: Any) -> None:
    """A folder as Orbax's handler writes it, after three elements."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.closing(make()) as iterator:
        take(iterator, 3)
        grain.checkpoint.CheckpointHandler().save(folder, iterator)


def _sharded(folder: Path, shards: Any, saved_on: int, restored_on: tuple[int, ...]) -> None:
    """The states of all processes after two steps, and the steps after them on other numbers."""
    checkpoint = folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    checkpoint.mkdir(parents=True)
    handler = grain.checkpoint.CheckpointHandler()
    running = shards(saved_on)
    for iterator in running:
        take(iterator, 2)
    states = [dump(iterator.get_state()) for iterator in running]
    for index, iterator in enumerate(running):
        with as_process(index, saved_on):
            handler.save(checkpoint, iterator)
        iterator.close()
    rest = {}
    for count in restored_on:
        others = shards(count)
        for index, iterator in enumerate(others):
            with as_process(index, count):
                handler.restore(checkpoint, iterator)
        rest[str(count)] = [take(iterator) for iterator in others]
        for iterator in others:
            iterator.close()
    _write(folder / "shards.json", {"states": states, "rest": rest})


def _of_grain(case: dict[str, Any]) -> dict[str, Any]:
    """The stream and the states of Grain's own `DataLoader`."""
    import grain as other
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    iterator = iter(pipelines.grain_loader(other, **case))
    states, stream = [iterator.get_state()], []
    for element in iterator:
        stream.append(pieces.plain(element))
        states.append(iterator.get_state())
    taken = sorted({0, 1, len(stream) // 2, len(stream)})
    return {"stream": stream, "states": {str(n): dump(states[n]) for n in taken}}


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
