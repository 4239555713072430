"""Fingerprints: which differences are errors, which are warned of, and which do not matter."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from grain_jax import MapDataset
from grain_jax._algebra import index_maps, samplers, sources, steps, transforms
from grain_jax._datasets import nodes, roots, sampled
from grain_jax._datasets.iter_dataset import plan_of
from grain_jax._datasets.plan import Plan, Upstream
from grain_jax._execution.fingerprint import compare, fingerprint
from grain_jax._execution.layout import Layout
from grain_jax.errors import StateError


def double(x: int) -> int:
    return 2 * x


def treble(x: int) -> int:
    return 3 * x


def step(kind: str, what: Any = double) -> steps.Step:
    return steps.step_for(kind, what, number=1)


BATCH = step("batch", transforms.Batch(2))


def sampled_by(sampler: Any, source: Any = range(10)) -> roots.NodeRoot:
    node = nodes.SourceNode(sources.adapt(source))
    return roots.NodeRoot(nodes.IndexNode(node, index_maps.Sample(sampler)))


def mark(
    root: Any = None,
    todo: Sequence[steps.Step] = (BATCH,),
    layout: Layout | None = None,
    **more: Any,
) -> dict[str, Any]:
    root = root or sampled_by(samplers.IndexSampler(10, shuffle=True, seed=1, num_epochs=1))
    return fingerprint(Plan(root, list(todo)), layout or Layout(10), **more)


def of(dataset: Any) -> dict[str, Any]:
    return fingerprint(plan_of(dataset.to_iter_dataset()), Layout(None))


def test_it_is_json_and_says_nothing_of_the_records() -> None:
    secret = sampled_by(samplers.SequentialSampler(2), ["secret one", "secret two"])
    assert mark(secret, sampler="SequentialSampler") == {
        "source": "list",
        "sampler": "SequentialSampler",
        "records": 2,
        "order": ["in order(records=2, seed=None)"],
        "sharding": "none",
        "counting": ["batch"],
        "maps": [],
    }
    json.dumps(mark())


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "source length": (
        mark(sampled_by(samplers.IndexSampler(10, shuffle=True, seed=1), range(12))),
        r"source's length: the state says 10, this pipeline says 12",
    ),
    "records of the sampler": (
        mark(sampled_by(samplers.IndexSampler(9, shuffle=True, seed=1))),
        r"records=10.*records=9",
    ),
    "seed": (mark(sampled_by(samplers.IndexSampler(10, shuffle=True, seed=2))), r"seed=1.*seed=2"),
    "shuffle": (mark(sampled_by(samplers.IndexSampler(10, seed=1))), r"shuffle\(.*in order\("),
    "own sampler": (
        mark(sampled.SampledRoot(sources.adapt(range(10)), [0], None)),
        r"a sampler of one's own",
    ),
    "sampler sharding": (mark(layout=Layout(10, sampler_shard=(0, 2))), r"'none'.*'sampler'"),
    "a filter": (mark(todo=[step("filter"), BATCH]), r"\['batch'\].*\['filter', 'batch'\]"),
    "order of steps": (mark(todo=[BATCH, step("flat_map")]), r"\['batch', 'flat_map'\]"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_that_change_the_stream(name: str) -> None:
    other, message = DIFFERENT[name]
    with pytest.raises(StateError, match=message) as caught:
        compare(mark(), other, strict=True)
    assert "Build the pipeline as it was, or write strict=False" in str(caught.value)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        compare(mark(), other, strict=False)
    assert str(noted[0].message).startswith("the state is of another pipeline")


def test_several_differences_are_told_at_once() -> None:
    other = mark(sampled_by(samplers.IndexSampler(8, seed=2), range(8)), [])
    with pytest.raises(StateError, match=r"length.*; .*order of records.*; .*change counts"):
        compare(mark(), other, strict=True)


SOFT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "source": (
        mark(),
        mark(sampled_by(samplers.IndexSampler(10, shuffle=True, seed=1), np.arange(10))),
        r"type of source differs: the state says 'range', this pipeline says 'ndarray'",
    ),
    "sampler": (mark(sampler="Mine"), mark(sampler="Yours"), r"type of sampler.*'Mine'.*'Yours'"),
    "renamed map": (
        mark(todo=[step("map"), BATCH]),
        mark(todo=[step("map", treble), BATCH]),
        r"map\(double\).*map\(treble\)",
    ),
    "added map": (mark(), mark(todo=[step("map"), BATCH]), r"\[\].*map\(double\)"),
}


@pytest.mark.parametrize("name", SOFT)
def test_differences_that_are_warned_of(name: str) -> None:
    saved, now, message = SOFT[name]
    with pytest.warns(UserWarning, match=message):
        compare(saved, now, strict=True)


FREE: dict[str, dict[str, Any]] = {
    "nothing": mark(),
    "epochs": mark(sampled_by(samplers.IndexSampler(10, shuffle=True, seed=1, num_epochs=7))),
    "batch size": mark(todo=[step("batch", transforms.Batch(5, True))]),
    "shards of the loader": mark(layout=Layout(10, shard=(1, 3))),
    "lanes": mark(layout=Layout(10, lanes=3)),  # the state itself says how many
}


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_matter(name: str) -> None:
    compare(mark(), FREE[name], strict=True)
    compare(FREE[name], mark(), strict=True)


@pytest.mark.parametrize(
    "other",
    [
        MapDataset.range(10).shuffle(seed=2).repeat(2),
        MapDataset.range(10).shuffle(seed=1)[2:].repeat(2),
        MapDataset.range(10).shuffle(seed=1).repeat(2, reseed_each_epoch=False),
        MapDataset.range(10).repeat(2).shuffle(seed=1),
        MapDataset.range(10).shuffle(seed=1).batch(2).repeat(2),
        MapDataset.range(10).shuffle(seed=1).filter(double).repeat(2),
        MapDataset.range(11).shuffle(seed=1).repeat(2),
    ],
)
def test_datasets_of_another_order(other: Any) -> None:
    given = of(MapDataset.range(10).shuffle(seed=1).repeat(2))
    with pytest.raises(StateError, match="another pipeline"):
        compare(given, of(other), strict=True)


def test_datasets_with_more_epochs() -> None:
    one, many = (MapDataset.range(10).shuffle(seed=1).repeat(n) for n in (1, None))
    compare(of(one), of(many), strict=True)


@pytest.mark.parametrize("field", ["records", "order", "sharding", "counting"])
@pytest.mark.parametrize("wrong", [None, [], {}, [[1]], 1.5, "x", {"a": [1]}])
def test_a_damaged_fingerprint_is_another_pipelines(field: str, wrong: Any) -> None:
    with pytest.raises(StateError, match="another pipeline"):
        compare({**mark(), field: wrong}, mark(), strict=True)
    incomplete = mark()
    del incomplete[field]
    with pytest.raises(StateError, match="the state says None"):
        compare(incomplete, mark(), strict=True)


def test_a_users_own_stream() -> None:
    assert fingerprint(Plan(Upstream(None), []), Layout(None))["records"] is None


SLICED = MapDataset.range(12).seed(7).shuffle()[:8]


def without(saved: dict[str, Any]) -> dict[str, Any]:
    """The mark that is written where slices have other records in each epoch."""
    return {key: value for key, value in saved.items() if key != "sliced"}


@pytest.mark.parametrize("epochs", [3, None])
def test_a_slice_that_had_other_records_in_later_epochs_is_refused(epochs: int | None) -> None:
    now = of(SLICED.repeat(epochs))
    with pytest.raises(
        StateError, match=r"a slice that is repeated.*every epoch has the same ones"
    ):
        compare(without(now), now, strict=True)
    with pytest.warns(UserWarning, match="a slice that is repeated"):
        compare(without(now), now, strict=False)


def test_how_often_a_slice_is_repeated_does_not_matter() -> None:
    compare(of(SLICED.repeat(1)), of(SLICED.repeat(3)), strict=True)
    compare(of(SLICED.repeat(3)), of(SLICED.repeat()), strict=True)
    compare(of(SLICED.repeat(3)), of(SLICED.repeat(1)), strict=True)
    # Once through is the stream that it was.
    compare(without(of(SLICED.repeat(1))), of(SLICED.repeat(1)), strict=True)
