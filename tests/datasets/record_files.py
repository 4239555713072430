"""Files of records: what readers are compared with, written in plain Python but for Parquet."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["PACKED", "example", "frame", "parquet", "write"]

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


def _shifted(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


TABLE = [_shifted(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Byte by byte, from the definition."""
    value = 0xFFFFFFFF
    for byte in data:
        value = TABLE[(value ^ byte) & 255] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(record: bytes) -> bytes:
    """A record as a TFRecord file has it."""
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def write(path: Path, records: Iterable[bytes]) -> str:
    """Writes a TFRecord file."""
    path.write_bytes(b"".join(map(frame, records)))
    return str(path)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features: Mapping[str, Any], packed: bool = True) -> bytes:
    """A `tf.train.Example` of lists of ints, floats or bytes."""
    entries = b""
    for name, values in features.items():
        if all(isinstance(value, bytes) for value in values):
            feature = part(1, b"".join(part(1, value) for value in values))
        elif all(isinstance(value, int) for value in values):
            numbers = [varint(value) for value in values]
            plain = part(1, b"".join(numbers)) if packed else b"".join(b"\x08" + n for n in numbers)
            feature = part(3, plain)
        else:
            floats = [struct.pack("<f", value) for value in values]
            plain = part(1, b"".join(floats)) if packed else b"".join(b"\x0d" + f for f in floats)
            feature = part(2, plain)
        entries += part(1, part(1, name.encode()) + part(2, feature))
    return part(1, entries)


def parquet(path: Path, first: int, rows: int, group: int = 4, **more: Any) -> str:
    """Writes a Parquet file of numbers and text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = range(first, first + rows)
    table = pa.table({"n": numbers, "s": [f"<{n}>" for n in numbers]})
    pq.write_table(table, str(path), row_group_size=group, **more)
    return str(path)
