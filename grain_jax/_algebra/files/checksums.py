"""Checksums: CRC-32C, as TFRecord files have it, by google_crc32c or with NumPy."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import numpy as np

from grain_jax._algebra.packing import Array

__all__ = ["crc32c", "function", "masked", "plain"]

_LANE = 64  # bytes of a lane; lanes are worked on side by side
_LONG = 4096


def masked(data: bytes) -> int:
    """Returns the checksum of some bytes as a TFRecord file stores it.

    Example:
      >>> hex(masked(b"123456789"))
      '0xc78ab0e5'
    """
    value = function()(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of some bytes.

    Example:
      >>> hex(crc32c(b"123456789"))
      '0xe3069283'
    """
    return function()(data)


@functools.cache
def function() -> Callable[[bytes], int]:
    """Returns what makes checksums: google_crc32c, or else `plain`."""
    try:
        google = importlib.import_module("google_crc32c")
    except ImportError:
        return plain
    value: Callable[[bytes], int] = google.value
    return value if google.implementation == "c" else plain


@functools.cache
def _table() -> Array:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(0x82F63B78), values >> 1)
    return values


@functools.cache
def _entries() -> list[int]:
    entries: list[int] = _table().tolist()
    return entries


def plain(data: bytes) -> int:
    """Returns the same without a package."""
    if len(data) >= _LONG:
        return _wide(data)
    table, value = _entries(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _wide(data: bytes) -> int:
    """The checksum is linear: lanes are done side by side, and then put together two by two."""
    lanes = 1 << (-(-len(data) // _LANE) - 1).bit_length()
    flat = np.zeros(lanes * _LANE, np.uint8)  # zeros in front change nothing
    flat[flat.size - len(data) :] = np.frombuffer(data, np.uint8)
    flat[flat.size - len(data) :][:4] ^= 0xFF
    table, values = _table(), np.zeros(lanes, np.uint32)
    for column in np.ascontiguousarray(flat.reshape(lanes, _LANE).T):
        values = table[(values ^ column) & 0xFF] ^ (values >> 8)
    level = _LANE.bit_length() - 1
    while len(values) > 1:
        values = _moved(values[0::2], level) ^ values[1::2]
        level += 1
    return int(values[0]) ^ 0xFFFFFFFF


def _moved(values: Array, level: int) -> Array:
    """Returns checksums with 2**level zero bytes behind them."""
    tables = _zeros(level)
    moved: Array = tables[0][values & 0xFF]
    for place in (1, 2, 3):
        moved = moved ^ tables[place][(values >> (8 * place)) & 0xFF]
    return moved


@functools.cache
def _zeros(level: int) -> Array:
    """Returns, for each byte of a checksum and each value, what 2**level zero bytes make of it."""
    if level == 0:
        single = np.arange(256, dtype=np.uint32)
        values = np.stack([single << (8 * place) for place in range(4)])
        moved: Array = _table()[values & 0xFF] ^ (values >> 8)
        return moved
    half = _zeros(level - 1)
    return np.stack([_moved(half[place], level - 1) for place in range(4)])
