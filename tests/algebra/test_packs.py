"""The operation that packs: Grain's batches, and the stream of a loader that goes on anywhere."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax as grain
from grain_jax.experimental import PackAndBatchOperation
from tests.compat.pairs import plain


def batches(library: ModuleType, elements: list[Any], **options: Any) -> list[Any]:
    python = importlib.import_module(f"{library.__name__}.python")
    records = [
        python.Record(python.RecordMetadata(index=number, record_key=number), element)
        for number, element in enumerate(elements)
    ]
    operation = library.experimental.PackAndBatchOperation(**options)
    made = operation(iter(records))
    return [(one.metadata.index, one.metadata.record_key, plain(one.data)) for one in made]


@settings(max_examples=50)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=25),
    rows=st.integers(1, 4),
    most=st.sampled_from([None, 1, 2]),
)
def test_batches_equal_grain(
    reference_grain: ModuleType, sizes: list[tuple[int, int]], rows: int, most: int | None
) -> None:
    elements = [
        {"x": 100 * number + np.arange(x), "y": (np.full((y, 2), number, np.float32),)}
        for number, (x, y) in enumerate(sizes)
    ]
    options = {
        "length_struct": {"x": 7, "y": (5,)},
        "batch_size": rows,
        "max_sequences_per_bin": most,
    }
    assert batches(grain, elements, **options) == batches(reference_grain, elements, **options)


def test_a_loader_packs_and_goes_on_behind_any_batch(no_process_left: None) -> None:
    source = [np.arange(1, 2 + number % 5) for number in range(23)]

    def loader(workers: int) -> grain.DataLoader:
        sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1)
        return grain.DataLoader(
            data_source=source,
            sampler=sampler,
            operations=[PackAndBatchOperation(length_struct=6, batch_size=2)],
            worker_count=workers,
        )

    with iter(loader(0)) as iterator:
        states, found = [], []
        for element in iterator:
            found.append(plain(element))
            states.append(iterator.get_state())
    tokens = sorted(token for data, _, _ in found for row in data[1] for token in row if token)
    assert tokens == sorted(int(token) for one in source for token in one)
    for workers in (0, 2):
        with iter(loader(workers)) as iterator:
            assert [plain(element) for element in iterator] == found
            with pytest.warns(UserWarning, match="PackAndBatchOperation"):
                iterator.set_state(states[3])
            assert [plain(element) for element in iterator] == found[4:]


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ({"x": np.ones(4)}, r"the leaf \['x'\] has length 4, and the rows have 3 \(at position 0"),
        ({"y": np.ones(2)}, r"structure {'y': \*}, and length_struct has {'x': \*}"),
        ({"x": 5}, r"the leaf \['x'\] is a number, and no sequence"),
    ],
)
def test_records_that_cannot_be_packed(element: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batches(grain, [element], length_struct={"x": 3}, batch_size=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_struct": {"x": 0}}, r"length_struct\['x'\] must be at least 1"),
        ({"length_struct": {}}, "length_struct has no leaves"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_sequences_per_bin": 0}, "max_sequences_per_bin must be at least 1"),
    ],
)
def test_options_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackAndBatchOperation(**{"length_struct": 3, "batch_size": 2, **options})


def test_no_records_give_no_batch() -> None:
    assert batches(grain, [], length_struct=3, batch_size=2) == []
