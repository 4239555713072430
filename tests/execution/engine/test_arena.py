"""Slots: aligned, lazily mapped, given back; a full disk is an error and no signal."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from grain_jax._execution.engine import arena, slots, table


@pytest.fixture(params=["memory", "file"])
def file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> arena.Arena:
    if request.param == "file":
        monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    return arena.Arena.create()


def account(file: arena.Arena, budget: int = 1 << 20) -> slots.Slots:
    return slots.Slots(file, table.Table(file, 2), budget)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("grain_jax")


def test_allocations_are_aligned_and_apart(file: arena.Arena) -> None:
    slot = arena.Slot(file, 1, 5)
    arrays = [slot.allocate(shape, kind) for shape in [(3,), (), (2, 5)] for kind in ("i1", "f8")]
    for number, array in enumerate(arrays):
        assert array.ctypes.data % 64 == 0
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()
    assert slot.allocate((2,), object).tolist() == [None, None]
    file.close()


def test_memory_outlives_the_file_and_ends_with_its_last_array(file: arena.Arena) -> None:
    gc.collect()
    before = mappings()
    memory = file.memory(1, 1000)
    array = np.ndarray((5,), np.int64, memory, 64)
    array[:] = 3
    part = array[2:].reshape(-1, 1)
    del memory, array
    file.close()
    assert (part == 3).all()
    assert arena.is_slot_memory(part)
    assert mappings() > before
    del part
    gc.collect()
    assert mappings() == before


def test_other_memory_is_not_the_librarys(tmp_path: Path) -> None:
    assert not arena.is_slot_memory(np.arange(3))
    assert not arena.is_slot_memory(np.frombuffer(bytearray(8), np.uint8))
    assert not arena.is_slot_memory(np.memmap(tmp_path / "m", mode="w+", shape=(3,)))
    assert not arena.is_slot_memory("text")


@pytest.mark.parametrize("size", [0, 1, 1000, 3 << 20])
def test_private_memory_is_aligned_and_the_librarys(size: int) -> None:
    memory = arena.private_memory(size)
    array = np.ndarray((size,), np.uint8, memory)
    array[:] = 1
    assert memory.size == size
    assert memory.ctypes.data % 64 == 0 or not size
    assert arena.is_slot_memory(array)
    assert arena.is_slot_memory(np.asarray(memoryview(array)))


def test_free_slots_are_used_again_the_warm_one_first(file: arena.Arena) -> None:
    book = account(file)
    first, second = book.acquire(), book.acquire()
    assert first is not None
    assert second is not None
    memory = file.memory(first, 100)
    array = np.ndarray((3,), np.uint8, memory)
    book.hand_out(first, memory)
    book.release(second)
    del memory
    assert book.acquire() == second
    del array
    assert book.acquire() == first
    file.close()


def test_pages_beyond_the_budget_go_back(file: arena.Arena) -> None:
    book = account(file, budget=1 << 20)
    taken = [book.acquire() for _ in range(4)]
    for slot in taken:
        assert slot is not None
        file.memory(slot, 1 << 19)[:] = 7
        book.grown(slot, 1 << 19)
    book.trim(keep=0)
    assert book.over_budget
    for slot in taken:
        assert slot is not None
        book.release(slot)
    book.trim(keep=3)
    assert book.over_budget
    book.trim(keep=0)
    assert not book.over_budget
    assert os.fstat(file.descriptor).st_blocks * 512 < 3 << 19
    warm = book.acquire()
    assert warm is not None
    assert file.memory(warm, 1 << 19)[0] == 7
    file.close()


def test_slots_a_worker_keeps_wait(file: arena.Arena) -> None:
    cells = table.Table(file, 2)
    book = slots.Slots(file, cells, 1 << 20)
    slot = book.acquire()
    assert slot is not None
    book.suspects.add(slot)
    cells.retained[slot, 1] = 1
    book.release(slot)
    assert book.acquire() != slot
    cells.retained[slot, 1] = 0
    assert book.acquire() == slot
    file.close()


def test_there_is_an_end_to_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MAX_SLOTS", 3)
    file = arena.Arena.create()
    book = account(file)
    assert [book.acquire() for _ in range(3)] == [1, 2, None]
    assert book.available() == 0
    file.close()


def test_a_full_disk_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = arena.Arena.create()
    with pytest.raises(OSError, match="No space") as caught:
        arena.Slot(file, 1, 0).allocate((1000,), np.uint8)
    assert "TMPDIR" in caught.value.__notes__[0]
    file.close()


def test_space_is_taken_without_posix_fallocate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    monkeypatch.delattr(os, "posix_fallocate")
    file = arena.Arena.create()
    slot = arena.Slot(file, 1, 0)
    slot.allocate((10,), np.uint8)[:] = 1
    slot.allocate((3 << 20,), np.uint8)[:] = 2
    assert os.fstat(file.descriptor).st_blocks * 512 >= 3 << 20
    assert slot.bytes_at(0, 10).tolist() == [1] * 10
    file.close()


def test_more_than_a_slot_holds_is_an_error() -> None:
    file = arena.Arena.create()
    with pytest.raises(MemoryError, match="smaller batches"):
        arena.Slot(file, 1, 0).allocate((file.stride + 1,), np.uint8)
    file.close()


def test_writes_to_a_private_copy_stay_there(file: arena.Arena) -> None:
    slot = file.memory(1, 3 * 4096)
    slot[:] = 1
    copies = [file.private_copy(1, 3 * 4096) for _ in range(2)]
    copies[0][5000:] = 2
    copies[1][:5000] = 3
    assert np.unique(slot).tolist() == [1]
    for copy, (front, back) in zip(copies, [(1, 2), (3, 1)], strict=True):
        assert (copy[:5000] == front).all()
        assert (copy[5000:] == back).all()
    file.close()


@pytest.mark.parametrize("advice", [23, 9999], ids=["populate", "touch"])
def test_secluded_memory_is_where_it_was_and_nobody_elses(
    file: arena.Arena, advice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "_MADV_POPULATE_WRITE", advice)
    size = 3 * 4096 + 5
    memory = file.memory(1, size)
    memory[:] = np.arange(size) % 251
    view, before = memory[100:], memory.tobytes()
    file.seclude(1, memory, copy=True)
    other = file.memory(1, size)
    assert other.tobytes() == before
    other[:] = 7  # the slot is used again
    assert memory.tobytes() == before
    view[:] = 8
    assert np.unique(other).tolist() == [7]
    file.close()


def test_memory_is_secluded_without_a_copy_where_nobody_writes(file: arena.Arena) -> None:
    memory = file.memory(1, 5000)
    memory[:] = 1
    file.seclude(1, memory, copy=False)
    memory[:10] = 2
    assert np.unique(file.memory(1, 5000)).tolist() == [1]
    file.seclude(1, memory, copy=True)
    file.memory(1, 5000)[:] = 3
    assert memory[:10].tolist() == [2] * 10
    assert np.unique(memory[10:]).tolist() == [1]
    file.close()


def test_where_no_memory_is_left_the_slot_is_not_used_again(
    file: arena.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = account(file)
    slot = owner.acquire()
    assert slot is not None
    memory = file.memory(slot, 100)
    owner.hand_out(slot, memory)
    memory.is_seen = True

    def full(*_: object) -> int:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(arena, "_mmap", full)
    owner.seclude(copy=True)
    monkeypatch.undo()
    del memory
    gc.collect()
    assert owner.acquire() != slot
    file.close()
