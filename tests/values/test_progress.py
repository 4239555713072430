"""What a process says that it is doing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grain_jax._values import progress


@pytest.fixture
def heard() -> Iterator[list[str]]:
    texts: list[str] = []
    progress.listen(texts.append)
    yield texts
    progress.listen(None)
    progress.forget()


def test_steps_are_heard_and_places_are_asked_for(heard: list[str]) -> None:
    row = 3
    progress.at("step 1", lambda: f"record {row}")
    before = progress.count()
    row = 4
    assert (progress.told(), progress.count()) == ("step 1, at record 4", before)
    progress.at("step 2")
    assert progress.told() == "step 2"
    assert progress.count() > before
    assert heard == ["step 1", "step 2"]
    progress.forget()
    assert progress.told() == ""


def test_nothing_is_held_where_nobody_listens() -> None:
    progress.at("step 1", lambda: "a record")
    assert progress.told() == ""
