from __future__ import annotations

import pickle
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from grain_jax._values.sharding import NoSharding, ShardByJaxProcess, ShardOptions, even_split


@given(n=st.integers(0, 200), count=st.integers(1, 20), drop=st.booleans())
def test_even_split_covers_everything_once(n: int, count: int, drop: bool) -> None:
    blocks = [even_split(n, ShardOptions(index, count, drop)) for index in range(count)]
    records = [record for start, stop in blocks for record in range(start, stop)]
    assert records == list(range(n // count * count if drop else n))
    sizes = {stop - start for start, stop in blocks}
    assert max(sizes) - min(sizes) <= (0 if drop else 1)


def test_reads_like_grain(reference_grain: ModuleType) -> None:
    theirs = reference_grain.sharding
    for ours, reference in [
        (NoSharding(), theirs.NoSharding()),
        (ShardOptions(1, 3), theirs.ShardOptions(1, 3)),
        (
            ShardOptions(shard_index=1, shard_count=3, drop_remainder=True),
            theirs.ShardOptions(shard_index=1, shard_count=3, drop_remainder=True),
        ),
        (ShardByJaxProcess(), theirs.ShardByJaxProcess()),
        (ShardByJaxProcess(drop_remainder=True), theirs.ShardByJaxProcess(drop_remainder=True)),
    ]:
        assert repr(ours) == repr(reference)


def test_takes_the_numbers_of_the_jax_process(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    monkeypatch.setattr(jax, "process_index", lambda: 2)
    monkeypatch.setattr(jax, "process_count", lambda: 5)
    assert ShardByJaxProcess(drop_remainder=True) == ShardOptions(2, 5, drop_remainder=True)


def test_equal_numbers_are_equal_options() -> None:
    assert NoSharding() == ShardOptions(0, 1)
    assert len({NoSharding(), ShardOptions(0, 1), ShardByJaxProcess()}) == 1
    assert ShardOptions(0, 2) != ShardOptions(1, 2)
    assert ShardOptions(0, 2) != ShardOptions(0, 2, drop_remainder=True)
    assert ShardOptions(0, 2) != (0, 2, False)


def test_one_shard_is_not_sharding() -> None:
    assert not NoSharding().is_given
    assert not ShardOptions(0, 1, drop_remainder=True).is_given
    assert ShardOptions(0, 2).is_given


@pytest.mark.parametrize("options", [NoSharding(), ShardOptions(1, 3, True), ShardByJaxProcess()])
def test_survives_pickling(options: ShardOptions) -> None:
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert type(copy) is type(options)


def test_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="shard_index"):
        ShardOptions(0, 2).shard_index = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("index", "count", "kind", "message"),
    [
        (2, 2, InvalidValueError, "shard_index must be below shard_count=2, got 2.*its own index"),
        (-1, 2, InvalidValueError, "shard_index must be at least 0, got -1.*its own index"),
        (0, 0, InvalidValueError, "shard_count must be at least 1, got 0.*NoSharding"),
        ("0", 2, InvalidTypeError, "shard_index must be a whole number, got '0' of type str"),
        (0, 2.0, InvalidTypeError, "shard_count must be a whole number, got 2.0 of type float"),
        (True, 2, InvalidTypeError, "shard_index must be a whole number, got True"),
    ],
)
def test_refuses_impossible_shards(
    index: int, count: int, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ShardOptions(index, count)
