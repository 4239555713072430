"""What goes into a slot comes out equal: type, shape, layout, values."""

from __future__ import annotations

import errno
import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from grain_jax._execution.engine import arena, wire


@pytest.fixture(scope="module")
def file() -> Iterator[arena.Arena]:
    made = arena.Arena.create()
    yield made
    made.close()


REGISTRY = wire.Registry("test", [])


def there_and_back(file: arena.Arena, *outputs: Any, info: Any = None) -> list[Any]:
    slot = arena.Slot(file, 1, 0)
    offset, _ = wire.encode(outputs, info, slot, REGISTRY)
    memory = file.memory(1, slot.end)
    count, back = wire.decode_info(memory, offset)
    assert count == len(outputs)
    assert back == info
    return wire.decode_outputs(memory, offset)


def same(back: Any, array: np.ndarray[Any, Any]) -> None:
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.flags.writeable == array.flags.writeable
    if array.dtype.names:  # the padding is anybody's
        assert repr(back.tolist()) == repr(array.tolist())
    else:
        assert back.tobytes() == array.tobytes()


STRUCTURED = np.dtype([("a", "<i4"), ("b", "f8", (2, 3)), ("c", "S5")], align=True)
ARRAYS = {
    "ints": np.arange(12).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(40).reshape(5, 8)[::2, ::-3],
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "scalar": np.array(7.5),
    "empty": np.zeros((0, 5), np.float32),
    "big endian": np.arange(5, dtype=">i2"),
    "bool": np.array([True, False]),
    "complex": np.arange(3) * 1j,
    "text": np.array(["a", "bcd"]),
    "bytes": np.array([b"a", b"bcd"]),
    "time": np.array(["2020-01-01", "NaT"], "M8[ns]"),
    "duration": np.array([1, 2], "m8[s]"),
    "bfloat16": np.arange(6).astype(ml_dtypes.bfloat16),
    "float8": np.arange(6).astype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.arange(6).astype(ml_dtypes.float8_e5m2),
    "int4": np.arange(6).astype(ml_dtypes.int4),
    "structured": np.zeros(3, STRUCTURED),
    "metadata": np.zeros(2, np.dtype("i4", metadata={"unit": "m"})),
    "void": np.zeros(2, "V7"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(file: arena.Arena, name: str) -> None:
    array = ARRAYS[name]
    (back,) = there_and_back(file, array)
    same(back, array)
    assert back.flags.f_contiguous == array.flags.f_contiguous or name in ("strided", "broadcast")
    assert back.dtype.metadata == array.dtype.metadata


def test_text_of_numpy_keeps_zeros_at_the_end(file: arena.Arena) -> None:
    given = [np.str_("a\0"), np.bytes_(b"b\0\0"), np.str_(""), np.bytes_(b"\0")]
    back = there_and_back(file, *given)
    assert list(map(type, back)) == list(map(type, given))
    assert back == given
    assert list(map(len, back)) == [2, 3, 0, 1]


@settings(max_examples=60)
@given(
    array=stn.arrays(
        st.one_of(stn.scalar_dtypes(), stn.array_dtypes(allow_subarrays=True)),
        stn.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_any_array(file: arena.Arena, array: np.ndarray[Any, Any]) -> None:
    (back,) = there_and_back(file, array)
    same(back, array)


def test_read_only_arrays_stay_read_only(file: arena.Arena) -> None:
    array = np.arange(5)
    array.flags.writeable = False
    same(there_and_back(file, array)[0], array)


def test_objects_and_text_of_any_length(file: arena.Arena) -> None:
    array = np.array(["a", None, {"b": np.arange(3)}], object)
    (back,) = there_and_back(file, array)
    assert back.dtype == object
    assert list(back[:2]) == ["a", None]
    np.testing.assert_array_equal(back[2]["b"], np.arange(3))
    if hasattr(np.dtypes, "StringDType"):
        words = np.array(["a", "long " * 20], np.dtypes.StringDType())
        assert list(there_and_back(file, words)[0]) == list(words)


def test_trees(file: arena.Arena) -> None:
    tree = {"a": [np.arange(3), (1, "b", b"c")], "d": OrderedDict(e=np.float32(2.5)), 7: None}
    back = there_and_back(file, tree, 5, info=([1, 2], "x"))
    assert back[1] == 5
    assert back[0]["d"] == tree["d"]
    assert type(back[0]["d"]["e"]) is np.float32
    assert back[0]["a"][1] == (1, "b", b"c")
    np.testing.assert_array_equal(back[0]["a"][0], np.arange(3))


def test_the_same_array_twice_is_the_same_array(file: arena.Arena) -> None:
    array = np.arange(4)
    first, second = there_and_back(file, array, array)
    assert first is second


def test_masked_arrays_and_other_buffers(file: arena.Arena) -> None:
    masked = np.ma.masked_array([1, 2, 3], [False, True, False])
    blob = bytearray(b"abc" * 1000)
    back, again = there_and_back(file, masked, blob)
    np.testing.assert_array_equal(back.mask, masked.mask)
    assert again == blob
    record = np.arange(4).view(np.recarray)
    (back,) = there_and_back(file, record)
    assert type(back) is np.recarray
    np.testing.assert_array_equal(back, record)


def test_what_lies_in_the_slot_is_not_copied(file: arena.Arena) -> None:
    slot = arena.Slot(file, 2, 0)
    array = slot.allocate((100, 100), np.float32)
    array[:] = 1
    used = slot.end
    views = [array, array[3:], array[::2, ::-1], array.T, array.reshape(-1)]
    offset, length = wire.encode(views, None, slot, None)
    assert slot.end - used < 64 + length
    assert length < 1000
    memory = file.memory(2, slot.end)
    for back, view in zip(wire.decode_outputs(memory, offset), views, strict=True):
        np.testing.assert_array_equal(back, view)
        assert back.strides == view.strides
    array[0, 0] = 5
    assert wire.decode_outputs(memory, offset)[0][0, 0] == 5


def test_a_slot_that_grows_keeps_what_is_in_it(file: arena.Arena) -> None:
    slot = arena.Slot(file, 3, 0)
    arrays = [slot.allocate((1000 * 4**n,), np.uint8) for n in range(7)]
    for n, array in enumerate(arrays):
        array[:] = n
    offset, _ = wire.encode(arrays, None, slot, None)
    memory = file.memory(3, slot.end)
    for n, back in enumerate(wire.decode_outputs(memory, offset)):
        assert (back == n).all()
        assert back.ctypes.data % 64 == 0


def test_encoding_keeps_nothing(file: arena.Arena) -> None:
    gc.disable()
    try:
        slot = arena.Slot(file, 4, 0)
        outputs = [slot.allocate((10,), np.int64), np.arange(5), {"a": bytearray(9)}]
        wire.encode(outputs, (1, 2), slot, REGISTRY)
        references = [weakref.ref(memory) for memory in slot.release()]
        del outputs
        assert [reference() for reference in references] == [None]
    finally:
        gc.enable()


class Local:
    """Known by number in a registry."""


def test_the_registrys_classes_come_back_as_themselves(file: arena.Arena) -> None:
    registry = wire.Registry("with a class", [Local])
    slot = arena.Slot(file, 5, 0)
    offset, _ = wire.encode([Local(), Local], None, slot, registry)
    mine, kind = wire.decode_outputs(file.memory(5, slot.end), offset)
    assert kind is Local
    assert type(mine) is Local


def test_a_full_disk_is_not_the_outputs_fault(
    file: arena.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(arena.Slot, "take", full)
    with pytest.raises(OSError, match="full") as caught:
        there_and_back(file, {"x": np.arange(1000)})
    assert not hasattr(caught.value, "__notes__")
