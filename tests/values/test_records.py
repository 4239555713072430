"""Records and their metadata."""

from __future__ import annotations

import numpy as np
import pytest

from grain_jax import Record, RecordMetadata


def test_remove_record_key_keeps_the_rest() -> None:
    rng = np.random.default_rng(0)
    given = RecordMetadata(index=5, record_key=2, rng=rng)
    found = given.remove_record_key()
    assert (found.index, found.record_key) == (5, None)
    assert found.rng is rng
    assert given.record_key == 2


def test_defaults_and_text() -> None:
    metadata = RecordMetadata(3)
    assert (metadata.record_key, metadata.rng) == (None, None)
    assert str(metadata) == "RecordMetadata(index=3, record_key=None, rng=None)"


def test_records_hold_what_they_are_given() -> None:
    record = Record(RecordMetadata(0, 4), {"x": 1})
    assert record.metadata.record_key == 4
    assert record.data == {"x": 1}
    assert record == Record(RecordMetadata(0, 4), {"x": 1})
    with pytest.raises(AttributeError):
        record.other = 1  # type: ignore[attr-defined]
