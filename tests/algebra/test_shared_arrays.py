"""Arrays that processes share by name."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax as grain

SharedMemoryArray = grain.multiprocessing.SharedMemoryArray


def made(values: Any = range(6), dtype: Any = np.int32) -> Any:
    array = SharedMemoryArray((2, 3), dtype)
    array.unlink_on_del()
    array[:] = np.reshape(np.array(list(values), dtype), (2, 3))
    return array


def exists(name: str) -> bool:
    try:
        memory = os.open(f"/dev/shm/{name}", os.O_RDONLY)
    except FileNotFoundError:
        return False
    os.close(memory)
    return True


def test_pickling_takes_the_name_along() -> None:
    array = made()
    again = pickle.loads(pickle.dumps(array))
    assert isinstance(again, SharedMemoryArray)
    again[1, 2] = 77
    assert array.tolist() == [[0, 1, 2], [3, 4, 77]]
    assert again.metadata == array.metadata
    assert len(pickle.dumps(array)) < 500
    large = SharedMemoryArray((1000, 1000))
    large.unlink_on_del()
    assert len(pickle.dumps(large)) < 500
    assert not large.any()


def test_the_memory_goes_with_who_is_to_unlink_it() -> None:
    array = made()
    name = array.metadata.name
    row, attached = array[1], SharedMemoryArray.from_metadata(array.metadata)
    assert exists(name)
    metadata = array.metadata
    del array, row
    assert not exists(name)
    assert attached.tolist() == [[0, 1, 2], [3, 4, 5]]  # who has it keeps it
    with pytest.raises(FileNotFoundError):
        SharedMemoryArray.from_metadata(metadata)


def test_a_view_keeps_the_memory() -> None:
    array = SharedMemoryArray((3,), np.int64)
    array[:] = [1, 2, 3]
    view, plain = array[1:], np.asarray(array)
    array.metadata.close_and_unlink_shm()
    del array
    assert view.tolist() == [2, 3]
    assert plain.tolist() == [1, 2, 3]


def test_views_that_a_name_does_not_describe_travel_as_copies() -> None:
    array = made()
    assert pickle.loads(pickle.dumps(array[:1])).tolist() == [[0, 1, 2]]
    for view in (array[1:], array[:, 1:], array.T, array[:, ::2]):
        again = pickle.loads(pickle.dumps(view))
        assert again.tolist() == view.tolist()
        assert not isinstance(again, SharedMemoryArray)
        with pytest.raises(ValueError, match="does not lie at the beginning"):
            _ = view.metadata


def test_results_are_plain_arrays() -> None:
    array = made()
    for result in (array + 1, np.sin(array), array.copy()):
        again = pickle.loads(pickle.dumps(result))
        assert again.tolist() == result.tolist()
        again[0, 0] = 50
        assert array[0, 0] == 0
    assert type(array + 1) is np.ndarray
    assert isinstance(array.sum(), np.integer)


def test_another_process_attaches_and_ends_without_taking_it_away() -> None:
    array = made()
    code = (
        "import pickle, sys; array = pickle.loads(bytes.fromhex(sys.argv[1])); array[0, 0] = 42;"
        "print(array.sum())"
    )
    folder = str(Path(grain.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", code, pickle.dumps(array).hex()],
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert (found.stdout.strip(), found.stderr) == ("57", "")
    assert array[0, 0] == 42
    assert exists(array.metadata.name)


@pytest.mark.usefixtures("no_process_left")
def test_elements_of_workers_read_it() -> None:
    array = made()
    ds = grain.MapDataset.range(4).map(lambda i: int(array[i % 2].sum()) + i)
    options = grain.MultiprocessingOptions(num_workers=2)
    with iter(ds.to_iter_dataset().mp_prefetch(options)) as iterator:
        assert list(iterator) == [3, 13, 5, 15]
    assert exists(array.metadata.name)


def test_over_memory_of_pythons() -> None:
    memory = shared_memory.SharedMemory(create=True, size=24)
    array = SharedMemoryArray.from_shared_memory(memory, (3,), np.int64)
    array[:] = [4, 5, 6]
    assert array.metadata.name == memory.name
    assert SharedMemoryArray.from_metadata(array.metadata).tolist() == [4, 5, 6]
    del array
    SharedMemoryArray.enable_async_del(num_threads=2)
    SharedMemoryArray.close_shm_async(memory, unlink=True)
    assert not exists(memory.name)


def test_as_in_grain(reference_grain: ModuleType) -> None:
    for library in (grain, reference_grain):
        array = library.multiprocessing.SharedMemoryArray([2, 2])
        array[:] = [[1, 2], [3, 4]]
        array.unlink_on_del()
        assert array.dtype == np.float64
        metadata = array.metadata
        assert metadata == library.multiprocessing.SharedMemoryArrayMetadata(
            metadata.name, (2, 2), np.dtype(float)
        )
        assert hash(metadata) == hash(array.metadata)
        assert library.multiprocessing.SharedMemoryArray.from_metadata(metadata).sum() == 10
        python = importlib.import_module(f"{library.__name__}.python")
        assert python.SharedMemoryArray is library.multiprocessing.SharedMemoryArray


def test_empty_arrays_and_objects() -> None:
    array = SharedMemoryArray((0, 3), np.int8)
    array.unlink_on_del()
    assert pickle.loads(pickle.dumps(array)).shape == (0, 3)
    with pytest.raises(TypeError, match="holds objects of this process"):
        SharedMemoryArray((2,), object)
