"""Metrics: what an iterator has measured, for Prometheus."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from grain_jax._values import errors
from grain_jax._values.stats import Stats

__all__ = ["Metrics", "prometheus_metrics"]

_COUNTED = {
    "elements": "Elements that the training loop has received.",
    "wait_seconds": "Seconds in which the training loop waited for data.",
    "compute_seconds": "Seconds in which the training loop did something else.",
    "skipped_records": "Records that an ErrorPolicy has left out.",
}
_BY_STEP = {
    "step_seconds": "Seconds in which a step was at work, in all processes together.",
    "step_records": "Elements that a step was given; of a source, that it gave.",
}


def prometheus_metrics(
    iterator: Any, *, registry: Any = None, labels: Mapping[str, str] | None = None
) -> Metrics:
    """Has Prometheus collect what an iterator measures, as `grain_jax_elements_total` and others.

    Needs `prometheus_client`, whose `start_http_server` serves them. Measuring begins if it has
    not. The registry keeps nothing alive: when the iterator is gone, so are its metrics.

    Args:
      iterator: of a loader, a dataset, or a device stage, ahead of its first element.
      registry: a `CollectorRegistry`; None for the one that `prometheus_client` serves.
      labels: to tell several iterators apart, such as `{"loader": "train"}`.

    Returns:
      What ends it, by its `close`.

    Raises:
      MissingDependencyError: without prometheus_client.
      InvalidTypeError: for what measures nothing.

    Example:
      >>> import grain_jax as grain
      >>> import prometheus_client
      >>> registry = prometheus_client.CollectorRegistry()
      >>> iterator = iter(grain.load(range(8), num_epochs=1, batch_size=4))
      >>> metrics = prometheus_metrics(iterator, registry=registry)
      >>> batches = list(iterator)
      >>> registry.get_sample_value("grain_jax_elements_total")
      2
    """
    try:
        import prometheus_client
    except ImportError:
        raise errors.MissingDependencyError(
            "prometheus_metrics needs prometheus_client. Install it: pip install "
            "'grain-jax[prometheus]'."
        ) from None
    if not hasattr(iterator, "start_stats"):
        raise errors.InvalidTypeError(
            f"a {type(iterator).__name__} measures nothing. Give the iterator that the training "
            "loop takes its batches from: iter(loader), or prefetch_to_device(loader)."
        )
    iterator.start_stats()
    return Metrics(iterator, registry or prometheus_client.REGISTRY, dict(labels or {}))


class Metrics:
    """A collector of Prometheus's over one iterator."""

    def __init__(self, iterator: Any, registry: Any, labels: dict[str, str]) -> None:
        self._iterator = weakref.ref(iterator)
        self._registry = registry
        self._labels = labels
        registry.register(self)

    def close(self) -> None:
        """Takes the metrics out of the registry; idempotent."""
        with contextlib.suppress(KeyError):
            self._registry.unregister(self)

    def describe(self) -> list[Any]:
        """Returns nothing: several iterators may have metrics of the same names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields the metrics as they are now."""
        iterator = self._iterator()
        if iterator is None:
            self.close()
            return
        yield from _families(iterator.stats(), self._labels)


def _families(stats: Stats, labels: dict[str, str]) -> Iterator[Any]:
    from prometheus_client import core

    names, values = list(labels), list(labels.values())
    numbers = (stats.elements, stats.waited, stats.computed, stats.skipped)
    for (name, text), number in zip(_COUNTED.items(), numbers, strict=True):
        family: Any = core.CounterMetricFamily(f"grain_jax_{name}", text, labels=names)
        family.add_metric(values, number)
        yield family
    for name, text in _BY_STEP.items():
        family = core.CounterMetricFamily(f"grain_jax_{name}", text, labels=[*names, "step"])
        for step in stats.steps:
            number = step.seconds if name == "step_seconds" else step.records
            family.add_metric([*values, step.name], number)
        yield family
    if stats.buffered is not None:
        family = core.GaugeMetricFamily(
            "grain_jax_buffered",
            "Elements that were there when asked for, on average",
            labels=names,
        )
        family.add_metric(values, stats.buffered)
        yield family
