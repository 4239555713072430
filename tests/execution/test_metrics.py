"""What an iterator measures, as Prometheus collects it."""

from __future__ import annotations

import gc
import sys
from typing import Any

import prometheus_client
import pytest

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.mark.parametrize("workers", [0, 2])
def test_metrics_are_the_stats_of_each_iterator(workers: int) -> None:
    registry = prometheus_client.CollectorRegistry()
    loader = grain.load(range(16), num_epochs=1, batch_size=4, worker_count=workers)
    iterators = {"train": iter(loader), "test": iter(loader)}
    metrics = [
        grain.prometheus_metrics(one, registry=registry, labels={"loader": name})
        for name, one in iterators.items()
    ]
    assert len(list(iterators["train"])) == 4
    next(iterators["test"])

    def value(name: str, loader: str, **more: str) -> Any:
        return registry.get_sample_value(f"grain_jax_{name}", {"loader": loader, **more})

    assert [value("elements_total", name) for name in iterators] == [4, 1]
    assert value("step_records_total", "train", step="source") == 16
    waited = iterators["train"].stats().waited
    assert value("wait_seconds_total", "train") == waited > 0
    assert value("skipped_records_total", "train") == 0
    metrics[0].close()
    metrics[0].close()
    assert value("elements_total", "train") is None
    del iterators["test"]
    gc.collect()
    assert prometheus_client.generate_latest(registry) == b""
    loader.close()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"a list_iterator measures nothing.*iter\(loader\)"):
        grain.prometheus_metrics(iter([1]))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install 'grain-jax\[prometheus\]'"):
        grain.prometheus_metrics(iter(grain.load([1])))
