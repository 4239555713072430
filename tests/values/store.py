"""A job of two processes, of which this one is the second, with a dict for its store."""

from __future__ import annotations

import pytest
from jax._src import distributed

from grain_jax._values import notices

__all__ = ["Store", "process_1_of_2"]


class Store:
    """The calls of the coordination service that are used."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        assert key not in self.values, "the service refuses it"
        self.values[key] = value

    def key_value_delete(self, key: str) -> None:
        self.values.pop(key, None)

    def key_value_dir_get_bytes(self, folder: str) -> list[tuple[str, bytes]]:
        return [(key, value) for key, value in self.values.items() if key.startswith(folder)]


def process_1_of_2(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Makes this process one of a job that has put up nothing, and returns its store."""
    store = Store()
    for name, value in {"client": store, "process_id": 1, "num_processes": 2}.items():
        monkeypatch.setattr(distributed.global_state, name, value)
    monkeypatch.setattr(notices, "_home", [])
    monkeypatch.setattr(notices, "_up", {})
    monkeypatch.setattr(notices.atexit, "register", lambda end: None)
    return store
