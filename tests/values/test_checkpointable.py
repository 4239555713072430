from __future__ import annotations

import asyncio
import inspect
import math
from pathlib import Path
from typing import Any

import pytest

from grain_jax._values import checkpointable
from grain_jax._values.checkpointable import restore_state, take_state
from grain_jax._values.errors import InvalidTypeError, StateError
from tests.product.counters import Counter, DictCounter, advanced


class Holder:
    """An iterator whose state is whatever it is given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Directory:
    """Orbax's path in the process of being created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.awaited = False

    async def await_creation(self) -> Path:
        await asyncio.sleep(0)
        self.path.mkdir()
        self.awaited = True
        return self.path


# Taking and restoring a state


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (b'{"a":  1}', b'{"a":  1}'),
        (bytearray(b"[1]"), b"[1]"),
        ({"a": [1, 2.5, None, True], "b": {"c": "d"}}, None),
        ("text", b'"text"'),
        (7, b"7"),
    ],
)
def test_a_state_comes_back_as_it_was(tmp_path: Path, state: Any, text: bytes | None) -> None:
    content = take_state(Holder(state))
    assert text is None or content == text
    (tmp_path / "process_0-of-1.json").write_bytes(content)
    other = Holder(state)
    other.state = type(state)()
    restore_state(other, tmp_path, index=0, count=1)
    assert other.state == state


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (b"\x80\x04pickle", "utf-8"),
        (b"{", "property name"),
        ({"a": {1, 2}}, "set is not JSON serializable"),
        ({"a": [{3: 1}]}, "key 3 is not a str"),
        ({"a": math.nan}, "not JSON compliant"),
        (object(), "object is not JSON serializable"),
    ],
)
def test_a_state_that_is_no_json_is_refused_at_the_save(state: Any, problem: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        take_state(Holder(state))
    message = str(caught.value)
    assert "The state of Holder is no JSON" in message
    assert problem in message


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(InvalidTypeError, match="The state of Holder is no JSON"):
        take_state(Holder(state))


@pytest.mark.parametrize("value", [None, [1, 2], {"a": 1}])
def test_what_has_no_state_is_refused_with_a_remedy(tmp_path: Path, value: Any) -> None:
    match = rf"{type(value).__name__} has no get_state\(\).*iter\(loader\)"
    with pytest.raises(InvalidTypeError, match=match):
        take_state(value)
    with pytest.raises(InvalidTypeError, match=match):
        restore_state(value, tmp_path, index=0, count=1)


def test_a_refused_state_says_where_it_was_read(tmp_path: Path) -> None:
    class Refusing(Holder):
        def set_state(self, state: Any) -> None:
            raise StateError("seed: 1 and 2")

    (tmp_path / "process_0-of-1.json").write_bytes(b"{}")
    with pytest.raises(StateError, match="seed: 1 and 2") as caught:
        restore_state(Refusing({}), tmp_path, index=0, count=1)
    assert caught.value.__notes__ == [f"The state was read from {tmp_path}."]


# The methods for Orbax's V1 API


@pytest.mark.parametrize("kind", [Counter, DictCounter])
def test_save_keeps_the_state_of_the_call(tmp_path: Path, kind: type[Counter]) -> None:
    iterator = advanced(kind(), 3)
    directory = Directory(tmp_path / "data")
    outer = iterator.save(directory)
    advanced(iterator, 5)  # before anything was awaited

    async def run() -> None:
        inner = await outer
        assert inspect.iscoroutine(inner)
        await asyncio.sleep(0)
        assert not directory.awaited
        await inner

    asyncio.run(run())
    assert directory.awaited

    other = kind()

    async def load() -> None:
        inner = await other.load(directory.path)
        assert inspect.iscoroutine(inner)
        assert other.position == 3
        assert other.prefetches == []
        await inner

    asyncio.run(load())
    assert other.prefetches == [3]
    assert iterator.position == 8


def test_the_process_is_that_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    monkeypatch.setattr(jax, "process_index", lambda: 3)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    assert checkpointable.process_position() == (3, 4)
