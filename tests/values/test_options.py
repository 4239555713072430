"""Options are checked where they are given; the errors name the value and a remedy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from grain_jax._values import errors, options


@pytest.mark.parametrize(("value", "expected"), [(3, 3), (np.int64(3), 3), (np.uint8(0), 0)])
def test_counts_become_ints(value: Any, expected: int) -> None:
    found = options.check_count("size", value, minimum=0)
    assert found == expected
    assert type(found) is int


@pytest.mark.parametrize("value", [1.0, "1", None, True, np.bool_(True), [1], np.array([1, 2])])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(errors.InvalidTypeError, match="size must be a whole number, got") as info:
        options.check_count("size", value, minimum=0)
    assert isinstance(info.value, TypeError)


def test_too_small_names_value_and_remedy() -> None:
    with pytest.raises(ValueError, match=r"size must be at least 1, got -2\. Write 1\."):
        options.check_count("size", -2, minimum=1, hint="Write 1.")


@pytest.mark.parametrize("seed", [0, 2**32 - 1, np.uint32(7)])
def test_seeds(seed: Any) -> None:
    assert options.check_seed(seed) == int(seed)


@pytest.mark.parametrize(
    ("seed", "text"),
    [
        (2**32, "seed must fit into 32 bits"),
        (2**32 + 5, "Write seed=5 for its lower 32 bits"),
        (-1, "seed must be at least 0, got -1"),
        (1.5, "seed must be a whole number, got 1.5"),
        (True, "seed must be a whole number, got True"),
    ],
)
def test_bad_seeds(seed: Any, text: str) -> None:
    with pytest.raises(errors.GrainError, match=text):
        options.check_seed(seed)


@pytest.mark.parametrize("name", ["num_threads", "prefetch_buffer_size"])
@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
def test_read_options(name: str, value: Any) -> None:
    with pytest.raises(errors.GrainError, match=name):
        options.ReadOptions(**{name: value})
    assert getattr(options.ReadOptions(**{name: 0}), name) == 0
    assert getattr(options.ReadOptions(), name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", -1),
        ("num_workers", 1.5),
        ("num_workers", "2"),
        ("num_workers", True),
        ("per_worker_buffer_size", 0),
        ("per_worker_buffer_size", 2.0),
        ("lanes", 0),
        ("lanes", 1.0),
        ("max_worker_restarts", -1),
        ("on_error", "skip"),
        ("stall_timeout", 0),
        ("stall_timeout", -2.0),
        ("stall_timeout", float("nan")),
        ("stall_timeout", "5"),
        ("stall_timeout", True),
        ("worker_init_fn", 5),
    ],
)
def test_multiprocessing_options(name: str, value: Any) -> None:
    with pytest.raises(errors.GrainError, match=name):
        options.MultiprocessingOptions(**{name: value})


def test_new_settings_are_by_keyword() -> None:
    with pytest.raises(TypeError):
        options.MultiprocessingOptions(1, 1, False, 2)  # type: ignore[misc]
    chosen = options.MultiprocessingOptions(1, 2, True, lanes=2, stall_timeout=0.5)
    assert (chosen.num_workers, chosen.per_worker_buffer_size, chosen.lanes) == (1, 2, 2)


def test_automatic_worker_count_is_within_what_may_be_used() -> None:
    count = options.check_worker_count("worker_count", None)
    assert 1 <= count <= 16
    if hasattr(os, "sched_getaffinity"):
        assert count <= len(os.sched_getaffinity(0))
    assert options.check_worker_count("worker_count", 0) == 0


def test_bad_worker_count_says_what_works() -> None:
    with pytest.raises(ValueError, match=r"worker_count must be at least 0, got -1\. 0 works in"):
        options.check_worker_count("worker_count", -1)
