"""An error policy leaves faulty records out, and the stream is the same for every worker count."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")


class Source:
    """60 records; every eleventh cannot be read."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, key: int) -> int:
        if key % 11 == 5:
            raise OSError(f"cannot read {key}")
        return key


class Check(grain.transforms.Map):
    def map(self, element: int) -> int:
        if element % 7 == 3:
            raise ValueError(f"bad record {element}")
        return element


class Twice(grain.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: int) -> list[int]:
        return [element, -element]


SAMPLER = grain.samplers.IndexSampler(60, shuffle=True, seed=1, num_epochs=1)
ORDER = [int(SAMPLER[i].record_key or 0) for i in range(60)]
GOOD = [key for key in ORDER if key % 7 != 3 and key % 11 != 5]
FAULTY = 60 - len(GOOD)


def _loader(*operations: Any, workers: int = 0, **settings: Any) -> grain.DataLoader:
    settings.setdefault("on_error", grain.ErrorPolicy())
    return grain.DataLoader(
        data_source=Source(),
        sampler=SAMPLER,
        operations=[Check(), *operations],
        worker_count=workers,
        **settings,
    )


def _counts_by_output(size: int) -> list[int]:
    """How many faulty records lie before the last record of each batch, counted by hand."""
    places = [place for place, key in enumerate(ORDER) if key in GOOD]
    return [
        places[min(end, len(places)) - 1] + 1 - min(end, len(places))
        for end in range(size, len(places) + size, size)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_made_of_what_is_left(workers: int) -> None:
    with _loader(grain.transforms.Batch(4), workers=workers) as loader:
        iterator = iter(loader)
        batches, counts = [], []
        for batch in iterator:
            batches.append(batch.tolist())
            counts.append(iterator.skipped_count)
        assert batches == [GOOD[i : i + 4] for i in range(0, len(GOOD), 4)]
        assert counts == _counts_by_output(4)
        # What failed after the last output is listed, and is met again by a restored iterator.
        assert len(iterator.skipped) == FAULTY
        assert any("OSError: cannot read 16" in text for text in iterator.skipped)
        listed = next(text for text in iterator.skipped if "bad record 31" in text)
        assert f"step 1: map(Check), at position {ORDER.index(31)} (record key 31)" in listed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("operations", [(), (grain.transforms.Batch(4),), (Twice(),)])
def test_restored_everywhere(workers: int, operations: tuple[Any, ...]) -> None:
    def run(iterator: grain.DataLoaderIterator) -> list[tuple[Any, int]]:
        return [(np.asarray(x).tolist(), iterator.skipped_count) for x in iterator]

    with _loader(*operations) as loader:
        expected = run(iter(loader))
    for stop in range(0, len(expected) + 1, 14):
        with _loader(*operations, workers=workers) as loader:
            iterator = iter(loader)
            for _ in range(stop):
                next(iterator)
            state = iterator.get_state()
            assert json.loads(state)["skipped"] == ([0] + [n for _, n in expected])[stop]
            restored = iter(loader)
            restored.set_state(state)
            assert run(restored) == expected[stop:]
            iterator.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("good", [0, 6])
def test_those_after_the_last_element_are_counted_at_the_end(good: int, workers: int) -> None:
    class FailsFrom(grain.transforms.Map):
        def map(self, element: int) -> int:
            if element >= good:
                raise ValueError("bad")
            return element

    with grain.DataLoader(
        data_source=range(10),
        sampler=grain.samplers.SequentialSampler(10),
        operations=[FailsFrom(), grain.transforms.Batch(2)],
        worker_count=workers,
        on_error=grain.ErrorPolicy(),
    ) as loader:
        iterator = iter(loader)
        assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3], [4, 5]][: good // 2]
        assert (iterator.skipped_count, len(iterator.skipped)) == (10 - good, 10 - good)
        # They come again after a restore, and are counted once.
        restored = iter(loader)
        restored.set_state(iterator.get_state())
        assert restored.skipped_count == 0
        assert list(restored) == []
        assert restored.skipped_count == 10 - good


@pytest.mark.parametrize("workers", [0, 2])
def test_budget(workers: int) -> None:
    policy = grain.ErrorPolicy(skip=(ValueError, OSError), max_count=3)
    with _loader(grain.transforms.Batch(4), workers=workers, on_error=policy) as loader:
        iterator = iter(loader)
        within = sum(count <= 3 for count in _counts_by_output(4))
        for _ in range(within):
            next(iterator)
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"records failed, and max_count=3") as caught:
                next(iterator)
            assert "iterator.skipped" in str(caught.value)
            assert iterator.get_state() == state


def test_fraction_counts_from_the_hundredth_record_on() -> None:
    class Bad(grain.transforms.Map):
        def map(self, element: int) -> int:
            if element < 10 or element >= 150:
                raise ValueError("bad")
            return element

    policy = grain.ErrorPolicy(max_fraction=0.1)
    loader = grain.DataLoader(
        data_source=range(400),
        sampler=grain.samplers.SequentialSampler(400),
        operations=[Bad(), grain.transforms.Batch(10)],
        on_error=policy,
    )
    seen = []
    with pytest.raises(grain.errors.TooManyErrors, match=r"of \d+ records failed.*0\.1"):
        seen.extend(loader)
    assert [batch[0] for batch in seen] == list(range(10, 150, 10))


def test_other_exceptions_and_errors_after_a_batch_are_raised() -> None:
    class Late(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            raise ValueError("after the batch")

    only_values = grain.ErrorPolicy(skip=ValueError)
    with pytest.raises(OSError, match="cannot read"):
        list(_loader(on_error=only_values))
    with pytest.raises(ValueError, match="after the batch"):
        list(_loader(grain.transforms.Batch(4), Late()))


def test_logged_once_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="grain_jax"):
        assert [int(x) for x in _loader()] == GOOD
    assert sorted(r.getMessage().split("word: ")[1].split(":")[0] for r in caplog.records) == [
        "OSError",
        "ValueError",
    ]


class Ends:
    """1,000 records, of which those from some key on cannot be read."""

    def __init__(self, good: int) -> None:
        self.good = good

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, key: int) -> int:
        if key >= self.good:
            raise OSError(f"cannot read {key}")
        return key


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize(
    ("good", "policy", "what"),
    [
        (0, {"max_count": 10}, "1000 records failed, and max_count=10"),
        (8, {"max_count": 991}, "992 records failed"),
        (0, {"max_fraction": 0.5}, "1000 of 1000 records failed, and max_fraction=0.5"),
    ],
)
def test_a_stream_that_only_fails_has_an_end(
    good: int, policy: dict[str, Any], what: str, size: int | None, workers: int
) -> None:
    with grain.DataLoader(
        data_source=Ends(good),
        sampler=grain.samplers.SequentialSampler(1_000)
        if good
        else grain.samplers.IndexSampler(1_000, seed=0),  # without an end
        operations=[] if size is None else [grain.transforms.Batch(size)],
        worker_count=workers,
        on_error=grain.ErrorPolicy(**policy),
    ) as loader:
        iterator = iter(loader)
        expected = list(range(good)) if size is None else [list(range(4)), list(range(4, 8))]
        for element in expected[: None if good else 0]:
            assert np.asarray(next(iterator)).tolist() == element
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(grain.errors.TooManyErrors, match=what):
                next(iterator)
            assert iterator.get_state() == state


def test_a_long_run_within_the_budget_is_left_out() -> None:
    class Hole(grain.transforms.Map):
        def map(self, element: int) -> int:
            if 100 <= element < 3_200:
                raise ValueError("bad")
            return element

    loader = grain.DataLoader(
        data_source=range(10_000),
        sampler=grain.samplers.SequentialSampler(10_000),
        operations=[Hole()],
        on_error=grain.ErrorPolicy(max_count=3_100),
    )
    iterator = iter(loader)
    assert [int(x) for x in iterator] == [*range(100), *range(3_200, 10_000)]
    assert iterator.skipped_count == 3_100


def test_the_list_is_bounded_and_tells_each_record_once() -> None:
    class Bad(grain.transforms.Map):
        def map(self, element: int) -> int:
            if element % 2:
                raise ValueError("x" * 1_000_000)
            return element

    loader = grain.DataLoader(
        data_source=range(300),
        sampler=grain.samplers.SequentialSampler(300),
        operations=[Bad()],
        on_error=grain.ErrorPolicy(),
    )
    iterator = iter(loader)
    start = iterator.get_state()
    assert [int(x) for x in iterator] == list(range(0, 300, 2))
    listed = iterator.skipped
    places = [f"position {i} " for i in range(101, 300, 2)]
    assert all(place in text for place, text in zip(places, listed, strict=True))
    assert max(map(len, listed)) < 2_000
    iterator.set_state(start)
    for _ in range(5):
        next(iterator)
    assert iterator.skipped_count == 4  # 1, 3, 5 and 7 come before 8
    assert len(set(iterator.skipped)) == len(iterator.skipped) == 100
    for _ in iterator:
        pass
    assert iterator.skipped == listed


@pytest.mark.parametrize("workers", [0, 2])
def test_behind_the_device_stage(workers: int) -> None:
    with (
        _loader(grain.transforms.Batch(4), workers=workers) as loader,
        grain.prefetch_to_device(loader, remainder="drop") as stage,
    ):
        batches = [batch.tolist() for batch in stage]
        assert batches == [GOOD[i : i + 4] for i in range(0, len(GOOD) - 3, 4)]
        assert (stage.skipped_count, len(stage.skipped)) == (FAULTY, FAULTY)
    assert grain.prefetch_to_device(iter([])).skipped == ()


def test_a_state_from_before_the_policy_restores() -> None:
    strict = iter(
        grain.DataLoader(
            data_source=range(60), sampler=SAMPLER, operations=[grain.transforms.Batch(4)]
        )
    )
    next(strict)
    tolerant = iter(
        grain.DataLoader(
            data_source=range(60),
            sampler=SAMPLER,
            operations=[grain.transforms.Batch(4)],
            on_error=grain.ErrorPolicy(),
        )
    )
    tolerant.set_state(strict.get_state())
    assert next(tolerant).tolist() == ORDER[4:8]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skip": 3}, r"skip must be an exception class .* got 3"),
        ({"skip": ()}, r"skip must be"),
        ({"max_count": -1}, r"max_count must be at least 0, got -1"),
        ({"max_fraction": 2}, r"between 0 and 1, got 2"),
        ({"max_fraction": "0.1"}, r"between 0 and 1, got '0.1'"),
        ({"max_fraction": float("nan")}, r"between 0 and 1, got nan"),
    ],
)
def test_bad_policies_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        grain.ErrorPolicy(**settings)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'skip' is not known.*ErrorPolicy"):
        _loader(on_error="skip")
