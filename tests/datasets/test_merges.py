"""Datasets of several: mixtures, concatenations, zips, and what a map of indices selects."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import MapDataset, transforms

pytestmark = pytest.mark.usefixtures("no_process_left")


def plain(value: Any) -> Any:
    """With Python's own numbers."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, np.generic) else value


class Back(transforms.DatasetSelectionMap):
    """The datasets in turn, from their last elements on."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths) * min(self.lengths)

    def __getitem__(self, index: int) -> tuple[int, int]:
        within = index % len(self)
        part = within % len(self.lengths)
        return part, self.lengths[part] - 1 - within // len(self.lengths)


class Fails(transforms.Map):
    def map(self, element: int) -> int:
        if element == 102:
            raise KeyError(element)
        return element


def noise(element: Any, rng: np.random.Generator) -> tuple[Any, int]:
    return element, int(rng.integers(2**40))


def odd(element: int) -> bool:
    return bool(element % 2)


A, B, C = MapDataset.range(10), MapDataset.range(100, 107), MapDataset.range(1000, 1003)
Even, Thrice = A.filter(lambda x: x % 2 == 0), C.repeat(3)


def test_a_mixture() -> None:
    mixed = MapDataset.mix([A, B], weights=[3, 1])
    assert list(mixed) == [0, 1, 2, 100, 3, 4, 5, 101, 6, 7, 8, 102, 9]
    assert len(mixed) == 13
    assert mixed[13] == 0  # each part goes on where it was
    assert repr(mixed) == "MapDataset.mix(weights=[3, 1]) of 2 datasets"
    assert mixed.parents == (A, B)


def test_a_concatenation_has_epochs_as_its_parts_do() -> None:
    joined = MapDataset.concatenate([A.shuffle(seed=3), C])
    one, two = A.shuffle(seed=3), [0, 1, 2]
    expected = [one[i] for i in range(10)] + [1000 + i for i in two]
    expected += [one[i] for i in range(10, 20)] + [1000 + i for i in two]
    assert [joined[i] for i in range(26)] == expected
    assert list(joined.repeat(2)) == expected


def test_a_zip() -> None:
    assert list(MapDataset.zip([A[:3], C])) == [(0, 1000), (1, 1001), (2, 1002)]
    holes = MapDataset.zip([A, Even])
    assert list(holes) == [(i, i) for i in range(0, 10, 2)]
    assert holes[1] is None
    with pytest.raises(ValueError, match=r"equal lengths, and these have \[10, 7\].*ds\[:7\]"):
        MapDataset.zip([A, B])


def test_a_selection() -> None:
    selected = MapDataset.select_from_datasets([A, C], Back([10, 3]))
    assert list(selected) == [9, 1002, 8, 1001, 7, 1000]
    assert repr(selected) == "MapDataset.select_from_datasets(Back) of 2 datasets"


def test_absent_elements_of_a_part_are_left_out_of_the_stream() -> None:
    mixed = MapDataset.mix([Even, B])
    assert [mixed[i] for i in range(6)] == [0, 100, None, 101, 2, 102]
    assert list(mixed) == [0, 100, 101, 2, 102, 103, 4, 104, 105, 6, 106]
    with pytest.raises(ValueError, match="cannot follow a filter"):
        mixed.batch(2)


def test_random_steps_behind_a_merge_draw_for_the_element_of_the_merge() -> None:
    parts = [d.seed(5).random_map(noise) for d in (A, B)]
    both = MapDataset.mix(parts).random_map(lambda x, rng: (*x, int(rng.integers(2**40))))
    elements = list(both)
    assert [e[0] for e in elements] == list(MapDataset.mix([A, B]))
    behind = [e[2] for e in elements]
    assert len(set(behind)) == len(behind)
    assert not {e[1] for e in elements} & set(behind)  # another step than that of the parts


def test_an_error_says_which_record_of_which_part() -> None:
    mixed = MapDataset.mix([A, B.shuffle(seed=1)]).map(Fails())
    place = next(i for i in range(14) if MapDataset.mix([A, B.shuffle(seed=1)])[i] == 102)
    with pytest.raises(KeyError) as caught:
        mixed[place]
    assert f"index {place} (dataset 1 of mix, record key 2)" in caught.value.__notes__[0]
    with pytest.raises(KeyError) as caught:
        list(mixed.to_iter_dataset())
    assert "(dataset 1 of mix, record key 2)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MapDataset.mix(A), "mix takes a list of datasets"),
        (lambda: MapDataset.mix([]), "mix got no datasets"),
        (lambda: MapDataset.mix([A, [1, 2]]), "dataset 1 of mix is .* no MapDataset"),
        (lambda: MapDataset.mix([A, B], [1]), "1 weights for 2 datasets"),
        (lambda: MapDataset.concatenate([A.repeat(), B]), "has no end"),
        (lambda: MapDataset.zip([]), "zip got no datasets"),
        (lambda: MapDataset.select_from_datasets([A], 5), "which has no __len__"),
    ],
)
def test_what_cannot_be_merged(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def drawn(rng: random.Random, depth: int) -> Any:
    """A random tree."""
    if not depth:
        return rng.choice([A, B, C, Even, Thrice])
    kind = rng.choice(["mix", "weights", "concatenate", "zip", "select", "slice", "map"])
    parts = [drawn(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind == "mix":
        return MapDataset.mix(parts)
    if kind == "weights":
        return MapDataset.mix(parts, [rng.choice([1, 2, 5]) for _ in parts])
    if kind == "concatenate":
        return MapDataset.concatenate(parts)
    if kind == "zip":
        shortest = min(map(len, parts))
        return MapDataset.zip([part[:shortest] for part in parts])
    if kind == "select":
        return MapDataset.select_from_datasets(parts, Back([len(part) for part in parts]))
    if kind == "slice":
        return parts[0].shuffle(seed=rng.randrange(9))[: rng.randint(1, 12)]
    return parts[0].seed(rng.randrange(9)).random_map(noise)


def at(dataset: Any, index: int) -> Any:
    """One element, asked for by itself at every node: the reference for blocks of them."""
    return plain(dataset[index])


@pytest.mark.parametrize("seed", range(40))
def test_random_trees_restore_at_every_position(seed: int) -> None:
    rng = random.Random(seed)
    dataset = drawn(rng, rng.randint(1, 3))
    expected = [x for i in range(len(dataset)) if (x := at(dataset, i)) is not None]
    stream = dataset.to_iter_dataset()
    iterator = iter(stream)
    states, found = [iterator.get_state()], []
    for element in iterator:
        found.append(plain(element))
        states.append(iterator.get_state())
    assert found == expected
    for place in rng.sample(range(len(states)), min(4, len(states))):
        again = iter(stream)
        again.set_state(json.loads(json.dumps(states[place])))
        assert [plain(element) for element in again] == expected[place:]


@pytest.mark.parametrize("seed", range(3))
def test_random_trees_with_workers(seed: int) -> None:
    rng = random.Random(100 + seed)
    dataset = drawn(rng, 3)
    expected = [x for i in range(len(dataset)) if (x := at(dataset, i)) is not None]
    options = grain.MultiprocessingOptions(num_workers=2)
    with iter(dataset.to_iter_dataset().mp_prefetch(options)) as iterator:
        assert [plain(element) for element in iterator] == expected


def test_a_state_of_another_mixture_is_refused() -> None:
    state = iter(MapDataset.mix([A, B], [3, 1]).to_iter_dataset()).get_state()
    others = {
        "weights": MapDataset.mix([A, B], [1, 3]),
        "order of parts": MapDataset.mix([B, A], [3, 1]),
        "shuffle": MapDataset.mix([A.shuffle(seed=1), B], [3, 1]),
        "kind": MapDataset.concatenate([A, B]),
    }
    for other in others.values():
        with pytest.raises(grain.errors.StateError, match="state is of another pipeline"):
            iter(other.to_iter_dataset()).set_state(state)


def test_a_mixture_restores_on_another_number_of_shards() -> None:
    """One number says where a mixture stands, as for any stream of known counts."""
    mixed = MapDataset.mix([A.repeat(), B.repeat()], [2, 1])
    two = [iter(mixed[shard::2].to_iter_dataset().batch(3)) for shard in range(2)]
    first = sorted(x for it in two for x in next(it).tolist())
    assert first == sorted(mixed[i] for i in range(6))
    elastic = [
        grain.experimental.ElasticIterator(mixed, 6, grain.sharding.ShardOptions(i, 2))
        for i in range(2)
    ]
    next(elastic[0])
    whole = grain.experimental.ElasticIterator(mixed, 6, grain.sharding.ShardOptions(0, 1))
    whole.set_state(elastic[0].get_state())
    assert next(whole).tolist() == [mixed[i] for i in range(6, 12)]
