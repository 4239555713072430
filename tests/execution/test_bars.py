"""Bars show totals, epochs and waits."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from tqdm import tqdm

import grain_jax as grain


def last_line(text: io.StringIO) -> str:
    return text.getvalue().replace("\r", "\n").strip().splitlines()[-1]


def test_a_bar_has_total_epoch_and_waits_and_passes_elements_and_states_on() -> None:
    loader = grain.load(range(12), num_epochs=2, batch_size=4)
    for epoch in loader.epochs():
        text = io.StringIO()
        bar = grain.progress(epoch, file=text, ascii=True)
        assert len(bar) == 3
        found = [batch.tolist() for batch in bar]
        assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert bar.get_state() == epoch.get_state()
        line = last_line(text)
        assert line.startswith(f"epoch {epoch.number}: 100%")
        assert "3/3" in line
        assert "waits " in line
        assert 0 <= bar.wait_share <= 1


@pytest.mark.parametrize(
    ("make", "total"),
    [
        (lambda: grain.load(range(12), num_epochs=2, batch_size=4), 6),
        (lambda: next(grain.load(range(12), num_epochs=2, batch_size=4).epochs()), 3),
        (lambda: grain.prefetch_to_device(grain.load(range(16), num_epochs=1, batch_size=8)), 2),
        (lambda: grain.MapDataset.range(12).batch(4), 3),
        (lambda: iter(grain.MapDataset.range(12).to_iter_dataset().batch(4)), 3),
        (lambda: grain.load(range(12), batch_size=4), None),
    ],
    ids=["loader", "epoch", "device", "random access", "stream", "endless"],
)
def test_tqdm_knows_totals(make: Any, total: int | None) -> None:
    assert tqdm(make(), file=io.StringIO()).total == total


def test_without_tqdm_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"pip install 'grain-jax\[progress\]'"):
        grain.progress([1])
