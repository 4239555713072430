"""Checksums with and without a package are those of the definition."""

from __future__ import annotations

import random

import pytest

from grain_jax._algebra.files import checksums
from tests.datasets import record_files


@pytest.mark.parametrize("length", [0, 1, 7, 8, 4095, 4096, 4097, 9000])
def test_checksums(length: int) -> None:
    data = random.Random(length).randbytes(length)
    right = record_files.crc32c(data)
    assert checksums.plain(data) == right
    assert checksums.crc32c(data) == right
    assert checksums.masked(data).to_bytes(4, "little") == record_files.masked(data)
