"""Memory of the library is recognised from every view, and nothing else is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from grain_jax._values.memory import _kept, is_owned, owned_empty


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


def test_large_memory_comes_back_when_the_last_view_is_gone() -> None:
    shape, dtype = (3, 1 << 20), np.dtype(np.float32)
    array = owned_empty(shape, dtype)
    place = array.ctypes.data
    view = array[1:, ::2]
    del array
    others = [owned_empty(shape, dtype) for _ in range(6)]
    assert place not in [other.ctypes.data for other in others]
    del view
    again = owned_empty(shape, dtype)
    assert again.ctypes.data == place
    assert is_owned(again[0])
    assert place % 64 == 0


def test_memory_that_jax_uses_does_not_come_back() -> None:
    jax = pytest.importorskip("jax")
    array = owned_empty((1 << 20,), np.dtype(np.float32))
    array[:] = 7
    place = array.ctypes.data
    on_device = jax.device_put(array, jax.devices("cpu")[0])
    del array
    others = [owned_empty((1 << 20,), np.dtype(np.float32)) for _ in range(6)]
    for other in others:
        other[:] = 0
    assert place not in [other.ctypes.data for other in others]
    assert float(on_device.min()) == 7


def test_few_pieces_are_kept() -> None:
    arrays = [owned_empty((1 << 20,), np.dtype(np.uint8)) for _ in range(50)]
    del arrays
    assert len(_kept) <= 4
