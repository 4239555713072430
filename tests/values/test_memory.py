"""Memory of the library is recognised from every view, and nothing else is."""

from __future__ import annotations

import gc
import mmap
import weakref

import ml_dtypes
import numpy as np
import pytest

from grain_jax._values.memory import adopt, is_owned, owned_empty


@pytest.mark.parametrize("shape", [(), (0,), (3,), (256, 8), (64, 224, 224, 3)])
@pytest.mark.parametrize("dtype", ["u1", "f8", ml_dtypes.bfloat16, "M8[s]", "S3", "i4,f8"])
def test_memory_of_the_library_is_recognised(shape: tuple[int, ...], dtype: object) -> None:
    array = owned_empty(shape, np.dtype(dtype))
    assert type(array) is np.ndarray
    assert array.shape == shape
    assert array.dtype == np.dtype(dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.nbytes < 4096 or array.ctypes.data % 64 == 0
    assert is_owned(array)
    assert is_owned(array[...].reshape(-1)[::2].view())


def test_other_memory_is_not() -> None:
    mine = np.zeros(5)
    for array in (mine, mine[1:], np.frombuffer(b"12345678"), owned_empty((3,), mine.dtype).copy()):
        assert not is_owned(array)
    assert not is_owned(owned_empty((3,), np.dtype(object)))
    assert not is_owned(None)
    assert not is_owned([1])


def test_adopted_memory_lives_as_long_as_a_view() -> None:
    buffer = mmap.mmap(-1, 4096)
    array = adopt(buffer, (3, 4), np.dtype(np.float32), 64)
    assert is_owned(array)
    assert array.shape == (3, 4)
    array[...] = 1
    assert np.frombuffer(buffer, np.float32)[16:28].tolist() == [1.0] * 12
    gone: list[int] = []
    weakref.finalize(array.base, gone.append, 1)
    view = array[1:].T
    del array
    gc.collect()
    assert not gone
    assert is_owned(view)
    del view
    gc.collect()
    assert gone
