"""What a process that waits for another makes of what it sees there, look by look."""

from __future__ import annotations

import json
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from grain_jax._product import exchange
from grain_jax._product.exchange import Channel
from grain_jax._values.errors import InvalidValueError
from tests.values.store import Store, process_1_of_2

BOTH: list[Any] = [SimpleNamespace(process_index=0), SimpleNamespace(process_index=1)]


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """That of a job whose second process this is."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(exchange, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(exchange, "_opened", defaultdict(list))
    monkeypatch.setattr(exchange, "_raised", {})
    return process_1_of_2(monkeypatch)


def used(number_of: int) -> list[Channel]:
    """Iterators that both processes have used for two batches."""
    channels = [Channel(BOTH) for _ in range(number_of)]
    for channel in channels:
        channel.say((0, 1), b"")
        channel._is_new = False
    return channels


def waits(channel: Channel, number: int, name: tuple[int, int], is_new: bool = False) -> Any:
    """The notice of process 0 as it waits at the iterator of this number."""
    return {"kind": "waits", "text": "", "at": [number, *name], "of": channel.digest, "new": is_new}


def looks(store: Store, channel: Channel, shown: list[Any]) -> tuple[int, str] | None:
    """In which look the wait for the third batch (first, of a new one) ends, and with what error.

    Args:
      store: of the job.
      channel: waits for process 0.
      shown: what process 0 has put up in each look, or None.
    """
    watch = exchange._Watch(channel, (0, 0) if channel._is_new else (0, 2))
    for count, notice in enumerate(shown, 1):
        store.values.pop("grain_jax/notices/0/last", None)
        if notice is not None:
            text = json.dumps({**notice, "number": count}).encode()
            store.values["grain_jax/notices/0/last"] = text
        try:
            watch.look([0])
        except InvalidValueError as error:
            return count, str(error)
    return None


def test_who_has_left_is_known_at_the_second_look_whatever_it_tries_next(store: Store) -> None:
    (channel,) = used(1)
    store.values[f"grain_jax/{channel.name}/left/0/said"] = b""
    tries = [waits(channel, number, (0, 0), is_new=True) for number in (1, 2)]
    found = looks(store, channel, [None, tries[0], None, tries[1]])
    assert found is not None
    count, text = found
    assert count == 2
    assert text.startswith("process 0 will not ask for it: it closed its iterator. ")


def test_two_places_elsewhere_count_as_one_that_is_seen_twice(store: Store) -> None:
    (channel,) = used(1)
    tries = [waits(channel, number, (0, 0), is_new=True) for number in (1, 2)]
    assert looks(store, channel, [tries[0], None, None]) is None
    found = looks(store, channel, [tries[0], None, tries[1], None])
    assert found is not None
    count, text = found
    assert count == 3
    assert "one that was used as number 3 there, and this is number 1 here: ask the iter" in text


@pytest.mark.parametrize("closes", [True, False])
def test_who_begins_anew_waits_for_those_who_are_to_learn_of_it(store: Store, closes: bool) -> None:
    (old,) = used(1)
    if closes:
        old.leave()
    new = Channel(BOTH)
    found = looks(store, new, [waits(new, 0, (0, 2))] * 9)
    assert found is not None
    count, text = found
    assert count == 6
    closed = ", which this process has closed" * closes
    assert f"used as number 1 there{closed}, and this is number 2 here" in text
    assert looks(store, new, [*[waits(new, 0, (0, 2))] * 3, *[None] * 9]) is None


def test_a_new_iterator_goes_to_the_place_of_a_later_one_of_another_process(store: Store) -> None:
    new = Channel(BOTH)
    tries = [waits(new, number, (0, 0), is_new=True) for number in (1, 2)]
    with pytest.raises(exchange._NewPlaceError) as place:
        looks(store, new, [tries[0], None, tries[1]])
    assert place.value.args == (2,)
