"""Arrays in the byte order of another machine are themselves up to the batch, in every process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")

WORKERS = pytest.mark.parametrize("workers", [0, 2])

UNIT = np.dtype("f4", metadata={"unit": "m"})

# Four rows each.
ARRAYS = {
    "integers": np.arange(12).reshape(4, 3).astype(">u2"),
    "floats": np.arange(12).reshape(4, 3).astype(">f4"),
    "times": np.arange(12).reshape(4, 3).astype(">M8[s]"),
    "durations": np.arange(12).reshape(4, 3).astype(">m8[ms]"),
    "text": np.array([[f"a{i}", "b"] for i in range(4)], ">U4"),
    "fields": np.array(
        [[(i, 2, "x"), (3, i, "yy")] for i in range(4)], [("a", ">i4"), ("b", "<f4"), ("c", ">U2")]
    ),
    "scalars": np.arange(4).astype(">u2"),
    "records": np.array([(i, 2) for i in range(4)], [("a", ">i4"), ("b", "<f4")]),
    "metadata": np.zeros((4, 2), UNIT),
    "metadata of fields": np.zeros((4, 2), [("a", UNIT), ("b", ">i2")]),
    "padding": np.zeros((4, 2), np.dtype([("a", "u1"), ("b", ">f8")], align=True)),
    "columns first": np.asfortranarray(np.arange(24).reshape(4, 3, 2).astype(">u2")),
    "every other": np.arange(24).reshape(4, 6).astype(">u2")[:, ::2],
}
KINDS = pytest.mark.parametrize("kind", ARRAYS)


class Own:
    """A source that hands out what it keeps."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


class Look(grain.transforms.Map):
    """Says what an operation gets, and hands it on."""

    def map(self, element: Any) -> Any:
        return said(element), element


class Take(grain.transforms.Map):
    """Returns rows that it holds."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def map(self, element: int) -> Any:
        return {kind: array[element] for kind, array in self.arrays.items()}


def said(value: Any) -> Any:
    """All that an array is, as plain data."""
    if isinstance(value, dict):
        return {key: said(part) for key, part in value.items()}
    content = value.tobytes() if value.dtype.fields is None else value.tolist()
    return type(value).__name__, value.shape, content, type_of(value.dtype)


def type_of(dtype: np.dtype[Any]) -> Any:
    metadata = dict(dtype.metadata or {})
    if dtype.fields is None:
        return dtype.str, metadata
    fields = [(name, type_of(dtype.fields[name][0])) for name in dtype.names or ()]
    return fields, dtype.isalignedstruct, metadata


def elements(source: Any, *steps: Any, workers: int) -> list[Any]:
    with grain.load(source, num_epochs=1, transformations=steps, worker_count=workers) as loader:
        return list(loader)


def seen(source: Any, workers: int) -> list[Any]:
    """What an operation gets, after a check that it is what comes out."""
    found = elements(source, Look(), workers=workers)
    for inside, element in found:
        assert inside == said(element)
    return [inside for inside, _ in found]


@WORKERS
@KINDS
def test_a_record_is_what_indexing_gives(kind: str, workers: int) -> None:
    array = ARRAYS[kind]
    assert seen(array, workers) == [said(array[i]) for i in range(4)]
    alone = [array[i].copy() for i in range(4)]
    assert seen(alone, workers) == list(map(said, alone))


@WORKERS
def test_so_it_is_inside_of_others(workers: int) -> None:
    rows = [{kind: array[i] for kind, array in ARRAYS.items()} for i in range(4)]
    right = list(map(said, rows))
    for source in (ARRAYS, rows, Own(rows)):
        assert seen(source, workers) == right
    assert list(map(said, elements(range(4), Take(ARRAYS), workers=workers))) == right


@WORKERS
def test_types_that_compare_equal_are_not_taken_for_each_other(workers: int) -> None:
    padded = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    same = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 8]})
    assert padded == same
    assert padded.isalignedstruct
    assert not same.isalignedstruct
    records = [np.zeros(2, UNIT), np.zeros(2, "f4"), np.zeros(2, padded), np.zeros(2, same)]
    for some in (records[:2], records[2:], records[::-1]):
        assert seen(some, workers) == list(map(said, some))


@WORKERS
@pytest.mark.parametrize("kind", ["integers", "times", "fields"])
def test_a_batch_is_native(kind: str, workers: int) -> None:
    array = ARRAYS[kind]
    alone = [array[i].copy() for i in range(4)]
    right = np.stack(alone)
    assert right.dtype.isnative
    for source in (array, alone, Own(alone)):
        with grain.load(source, num_epochs=1, batch_size=4, worker_count=workers) as loader:
            (batch,) = loader
        assert said(batch) == said(right)
