"""Shared memory: one sparse file, slots at fixed offsets, arrays that keep their slot alive."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from grain_jax._values import faults
from grain_jax._values.errors import WorkerError

__all__ = [
    "ALIGNMENT",
    "MAX_SLOTS",
    "Allocate",
    "Arena",
    "Memory",
    "Slot",
    "gate",
    "give_back",
    "is_slot_memory",
    "map_file",
    "memory_file",
    "memory_over",
    "private_memory",
    "reserve",
]

ALIGNMENT = 64  # bytes; JAX on CPU takes a buffer without a copy only from this alignment on
MAX_SLOTS = 4096  # each is one mapping in each process, and the kernel allows 65,530 of those
_MAX_SLOTS_ON_DISK = 512
_SMALLEST_MAPPING = 1 << 16
_PAGE = mmap.PAGESIZE
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 1, 2, 0x10
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_MADV_REMOVE = 9
_MADV_POPULATE_WRITE = 23


gate = threading.RLock()
"""A fork holds it, and looks at what this process has of slots: nothing becomes known meanwhile."""


class Memory(np.ndarray[Any, Any]):
    """The bytes under the arrays of one result: they stay as long as any array on them does.

    Attributes:
        is_seen: whether there may be arrays on it outside this package.
    """

    is_seen = False

    def part(self, start: int, size: int) -> Memory:
        """Returns some of the bytes, which keep all of them."""
        return np.ndarray.__new__(Memory, (size,), np.uint8, buffer=self, offset=start)


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    ]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


@functools.cache
def _block_type(size: int) -> Any:
    # A ctypes array that unmaps itself. `mmap.mmap` would hold a file descriptor for each mapping
    # (until Python 3.13), and a process has few of those.
    munmap, address_of = _libc().munmap, ctypes.addressof

    def release(block: Any) -> None:
        munmap(address_of(block), size)

    fields = {"_type_": ctypes.c_ubyte, "_length_": size, "__del__": release}
    return type("Block", (ctypes.Array,), {**fields, "is_private": False, "is_copied": False})


def map_file(descriptor: int, offset: int, size: int, private: bool = False) -> Any:
    """Maps part of a file; the mapping ends with the last reference to what is returned.

    `private` makes changes visible to this process only. `descriptor=-1` gives fresh zeroed memory.
    """
    flags = (_MAP_PRIVATE | _MAP_NORESERVE) if private else _MAP_SHARED
    if descriptor < 0:
        flags |= mmap.MAP_ANON
    return _block_type(size).from_address(_mmap(None, size, flags, descriptor, offset))


def _mmap(where: int | None, size: int, flags: int, descriptor: int, offset: int) -> int:
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc().mmap(where, size, access, flags, descriptor, offset)
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes: {os.strerror(code)}")
    return int(address)


def _copy_pages(address: int, size: int) -> None:
    """Makes the pages of a private mapping this process's own, whatever becomes of the file."""
    size = -(-size // _PAGE) * _PAGE
    if _libc().madvise(address, size, _MADV_POPULATE_WRITE) == 0:
        return
    # Linux before 5.14, or another system: a write to each page does the same.
    block: Any = (ctypes.c_ubyte * size).from_address(address)
    pages = np.ndarray((size,), np.uint8, block)[::_PAGE]
    pages |= 0


def memory_over(block: Any, size: int) -> Memory:
    """Returns the first `size` bytes of a mapping as the base for arrays."""
    return np.ndarray.__new__(Memory, (size,), np.uint8, buffer=block)


def private_memory(size: int) -> Memory:
    """Returns memory of this process alone, 64-byte aligned, that counts as the library's own."""
    if size >= 1 << 20:
        return memory_over(map_file(-1, 0, -(-size // _PAGE) * _PAGE, private=True), size)
    room = bytearray(size + ALIGNMENT)
    shift = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % ALIGNMENT
    return np.ndarray.__new__(Memory, (size,), np.uint8, buffer=room, offset=shift)


def is_slot_memory(array: Any) -> bool:
    """Whether an array lies in memory that this library allocated and will not change or reuse."""
    base = array
    while base is not None:
        if isinstance(base, Memory):
            return True
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return False


def memory_file(name: str) -> tuple[int, bool]:
    """Returns a file without a name, and whether it lies on a disk that can be full."""
    if hasattr(os, "memfd_create") and os.environ.get("GRAIN_JAX_ENGINE_MEMORY") != "file":
        return os.memfd_create(name, os.MFD_CLOEXEC), False
    descriptor, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return descriptor, True


def reserve(descriptor: int, offset: int, size: int) -> None:
    """Takes disk space before a mapping writes to it, where a full disk would be SIGBUS."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, offset, size)
            return
        zeros = bytes(1 << 20)
        for start in range(0, size, len(zeros)):
            os.pwrite(descriptor, zeros[: size - start], offset + start)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            where = tempfile.gettempdir()
            error.add_note(
                f"grain_jax keeps batches in an unlinked file in {where}, which has no room for "
                f"{size} bytes more; free some space or set TMPDIR to a larger disk"
            )
        raise


def give_back(descriptor: int, offset: int, size: int) -> bool:
    """Gives whole pages of a file back to the system; False where it cannot do that."""
    block = map_file(descriptor, offset, size)
    return bool(_libc().madvise(ctypes.addressof(block), size, _MADV_REMOVE) == 0)


class Arena:
    """Slots in one memory file. Slot `i` begins at `i * stride`, and only its used pages exist."""

    __slots__ = ("_blocks", "descriptor", "on_disk", "slots", "stride")

    def __init__(self, descriptor: int, stride: int, slots: int, on_disk: bool) -> None:
        self.descriptor = descriptor
        self.stride = stride
        self.slots = slots
        self.on_disk = on_disk
        self._blocks: dict[int, Any] = {}

    @classmethod
    def create(cls) -> Arena:
        """Makes the file, as large as the file system lets a sparse file be."""
        descriptor, on_disk = memory_file("grain_jax")
        stride, slots = 1 << 40, MAX_SLOTS
        if on_disk:
            stride, slots = 1 << 34, min(slots, _MAX_SLOTS_ON_DISK)
        while True:
            try:
                os.ftruncate(descriptor, stride * slots)
                return cls(descriptor, stride, slots, on_disk)
            except OSError as error:
                stride //= 2
                if stride < 1 << 28:
                    os.close(descriptor)
                    if error.errno == errno.EFBIG:
                        faults.add_note(
                            error,
                            "The limit on the sizes of files (`ulimit -f`) leaves no room for the "
                            "memory that is shared with workers. Raise it, or use worker_count=0.",
                        )
                    raise

    def block(self, slot: int, size: int) -> Any:
        """Returns a mapping of at least the first `size` bytes of a slot."""
        block = self._blocks.get(slot)
        if block is None or len(block) < size:
            if size > self.stride:
                raise MemoryError(
                    f"one task makes {size} bytes of arrays; a slot holds {self.stride}. "
                    "Use smaller batches."
                )
            block = self._blocks[slot] = self._map(slot, size, private=False)
        return block

    def _map(self, slot: int, size: int, private: bool) -> Any:
        # Few sizes, since each is a type of its own.
        room = max(_SMALLEST_MAPPING, 1 << (size - 1).bit_length())
        block = map_file(self.descriptor, slot * self.stride, min(room, self.stride), private)
        block.is_private = private
        return block

    def memory(self, slot: int, size: int) -> Memory:
        """Returns the first `size` bytes of a slot, as the base for arrays."""
        return memory_over(self.block(slot, size), size)

    def private_copy(self, slot: int, size: int) -> Memory:
        """Returns the first `size` bytes of a slot; what is written there, nobody else sees.

        Pages are copied as they are first written to. The others go on showing the slot.
        """
        return memory_over(self._map(slot, size, private=True), size)

    def seclude(self, slot: int, memory: Memory, copy: bool) -> None:
        """Makes memory of a slot private, where it is: arrays on it stay, and see the same.

        What this process writes there, nobody else sees from now on. The slot is mapped anew when
        it is used again.

        Args:
            slot: one that nobody else writes to now.
            memory: what `memory` or `private_copy` has returned.
            copy: whether the slot may be used again while there are arrays on this memory, in a
                forked child, say; else pages are copied as they are first written to.
        """
        block: Any = memory.base
        if self._blocks.get(slot) is block:
            del self._blocks[slot]
        if not block.is_private:
            flags = _MAP_PRIVATE | _MAP_NORESERVE | _MAP_FIXED
            address = ctypes.addressof(block)
            # The kernel does this, and the copies, beside threads that read and write there.
            _mmap(address, len(block), flags, self.descriptor, slot * self.stride)
            block.is_private = True
        if copy and not block.is_copied:
            _copy_pages(ctypes.addressof(block), memory.size)
            block.is_copied = True

    def room(self, slot: int, size: int) -> Memory:
        """Returns the first `size` bytes of a slot to write to; on a disk they are taken first."""
        if self.on_disk:
            reserve(self.descriptor, slot * self.stride, size)
        return self.memory(slot, size)

    def discard(self, slot: int, size: int) -> bool:
        """Gives the pages of a free slot back; False where the system cannot do that."""
        block = self.block(slot, size)
        pages = min(-(-size // _PAGE) * _PAGE, len(block))
        return bool(_libc().madvise(ctypes.addressof(block), pages, _MADV_REMOVE) == 0)

    def close(self) -> None:
        """Closes the file; mappings stay until the last array on them is gone."""
        self._blocks.clear()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Slot:
    """The slot of the task at hand, in a worker: memory for arrays, handed out from the front."""

    __slots__ = ("_addresses", "_arena", "_memories", "_shut", "end", "index")

    def __init__(self, arena: Arena, index: int, start: int) -> None:
        self._arena = arena
        self.index = index
        self.end = start
        self._memories: list[Memory] = []
        self._addresses: list[int] = []
        self._shut = False

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns an uninitialised array, 64-byte aligned, in the slot."""
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            return np.empty(shape, dtype)
        size = dtype.itemsize
        for length in shape:
            size *= length
        start = self.take(size)
        return np.ndarray(shape, dtype, buffer=self._memories[-1], offset=start)

    def take(self, size: int) -> int:
        """Sets `size` bytes aside and returns where they begin."""
        if self._shut:
            raise WorkerError(
                "a fork of a worker process went on with the worker's task. End what os.fork() "
                "makes with os._exit(0), or use multiprocessing."
            )
        start = -(-self.end // ALIGNMENT) * ALIGNMENT
        end = start + size
        if not self._memories or end > self._memories[-1].size:
            block = self._arena.block(self.index, max(end, 1))
            self._memories.append(memory_over(block, len(block)))
            self._addresses.append(ctypes.addressof(block))
        if self._arena.on_disk and size:
            reserve(self._arena.descriptor, self.index * self._arena.stride + start, size)
        self.end = end
        return start

    def bytes_at(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns bytes that `take` has set aside."""
        return np.ndarray((size,), np.uint8, buffer=self._memories[-1], offset=start)

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """Returns where in the slot an array lies; None when it lies elsewhere."""
        base = array.base
        while type(base) is np.ndarray:
            base = base.base
        if type(base) is not Memory:
            return None
        for memory, address in zip(self._memories, self._addresses, strict=True):
            if memory is base:
                return int(array.__array_interface__["data"][0]) - address
        return None

    def shut(self) -> None:
        """Gives no memory any more."""
        self._shut = True

    def release(self) -> list[Memory]:
        """Forgets the memory; what is returned lets the caller see whether somebody kept some."""
        memories, self._memories = self._memories, []
        return memories


Allocate = Callable[[tuple[int, ...], Any], "npt.NDArray[Any]"]
