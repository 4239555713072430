"""What processes need alike before they go on, and what each may have for itself."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grain_jax._execution.fingerprint import Declared
from grain_jax._product import terms
from grain_jax._product.placement import described
from grain_jax._product.row_states import Saved, with_rows, without_rows
from grain_jax._product.terms import Terms
from grain_jax._values.errors import StateError
from tests.product.test_lockstep_rule import FACTS, play

STAGE = {"remainder": "drop", "axis": 0}


def order(seed: int = 0, **more: Any) -> Declared:
    return Declared({"seed": seed, "number of shards": 2}, {"maps": ["map(a)"]}, None, **more)


def shard(index: int, count: int, seed: int = 0, maps: str = "map(a)") -> Declared:
    return Declared({"seed": seed, "number of shards": count}, {"maps": [maps]}, (index, count))


def settled(
    said: list[tuple[Declared | None, dict[str, int]]],
    rows: list[int] | None = None,
    stages: list[dict[str, Any]] | None = None,
    having: list[int] | None = None,
    is_set: bool = False,
) -> tuple[str, int]:
    """What becomes of what the processes say, and how often they ask for more.

    Args:
      said: what is declared, and where it stands, of each process.
      rows: which block of the rows each holds.
      stages: arguments of each.
      having: processes that have a batch; None for all.
      is_set: whether positions were set.
    """
    held = {p: frozenset({(b, b + 1)}) for p, b in enumerate(rows or range(len(said)))}
    mine = []
    for process, source in enumerate(said):
        one = Terms((stages or [STAGE] * len(said))[process], None, 0, lambda source=source: source)  # type: ignore[misc]
        one.__dict__["_held"] = held
        mine.append(one)
    told = {p: json.loads(json.dumps(one.brief())) for p, one in enumerate(mine)}
    whole = {p: json.loads(json.dumps(one.whole())) for p, one in enumerate(mine)}
    asked: list[int] = []

    def ask() -> Any:
        asked.append(1)
        return whole

    have = range(len(said)) if having is None else having
    texts = {one.settle(told, have, is_set=is_set, ask=ask) for one in mine}
    assert len(texts) == 1, "they do not decide alike"
    return texts.pop(), len(asked) // len(mine)


def test_shards_of_one_order_need_no_word_more() -> None:
    assert settled([(shard(i, 4), {"records": 8}) for i in range(4)]) == ("", 0)


def test_some_shards_of_one_order_are_enough() -> None:
    assert settled([(shard(i, 7), {}) for i in (2, 5)]) == ("", 0)


def test_whole_orders_side_by_side_are_two_streams() -> None:
    said = [(shard(i % 2, 2, seed=i // 2), {"records": i // 2}) for i in range(4)]
    assert settled(said) == ("", 0)
    said = [(shard(0, 2), {}), (shard(1, 2), {}), (order(7), {})]
    assert settled(said) == ("", 0)


def test_an_order_that_lacks_shards_is_not_one() -> None:
    text, asked = settled([(shard(i, 3, seed=int(i == 1)), {}) for i in range(3)])
    assert asked == 1
    assert "do not load one order: seed: 0 on process 0 and 1 on process 1" in text


def test_one_shard_beside_a_stream_that_is_none_is_no_order() -> None:
    whole = Declared({"seed": 0, "number of shards": 1}, {}, None)
    text, _ = settled([(shard(0, 2), {}), (whole, {})])
    assert "number of shards: 2 on process 0 and 1 on process 1" in text


def test_streams_that_say_nothing_of_each_other_may_differ() -> None:
    said = [(order(seed), {"batches": seed}) for seed in range(3)]
    assert settled([*said, (None, {})]) == ("", 0)


def test_who_holds_the_same_rows_has_the_same_order() -> None:
    said: list[Any] = [(order(seed), {}) for seed in (0, 0, 1, 2)]
    text, _ = settled(said, rows=[0, 0, 1, 1])
    assert "seed: 1 on process 2 and 2 on process 3" in text
    assert settled([(order(0), {}), (None, {})], rows=[0, 0]) == ("", 0)
    text, _ = settled([(order(), {"batches": 1}), (order(), {"batches": 2})], rows=[0, 0])
    assert "process 0 stands at batch 1 and process 1 at batch 2" in text


def test_shards_are_those_of_the_rows() -> None:
    pairs: list[Any] = [(shard(i // 2, 2), {}) for i in range(4)]
    assert settled(pairs, rows=[0, 0, 1, 1]) == ("", 0)
    text, _ = settled(pairs, rows=[0, 1, 0, 1])
    assert "both load shard 0 of 2, and hold different rows" in text
    text, _ = settled([(shard(i, 2), {}) for i in (0, 1)], rows=[0, 0])
    assert "process 0 loads shard 0 of 2 and process 1 shard 1 of 2, and both hold the same" in text
    assert text.endswith("shard_options=ShardBySharding(sharding).")


def test_arguments_that_differ_are_named_with_both_values() -> None:
    stages = [STAGE, {"remainder": "pad", "axis": 0, "mask_key": "mask"}]
    text, asked = settled([(None, {})] * 2, stages=stages)
    assert asked == 1
    assert text.startswith(
        "the arguments of the device stage differ: remainder: 'drop' on process 0 and 'pad' on"
        " process 1."
    )
    stages[1] = {**STAGE, "mask_key": "mask"}
    assert "mask_key: absent on process 0" in settled([(None, {})] * 2, stages=stages)[0]


def test_names_that_differ_are_warned_of() -> None:
    said: list[Any] = [(shard(0, 2), {}), (shard(1, 2, maps="map(b)"), {})]
    with pytest.warns(UserWarning, match=r"maps: \['map\(a\)'\] on process 0 and \['map\(b\)'\]"):
        assert settled(said) == ("", 1)


@pytest.mark.parametrize(("key", "words"), [("records", "position"), ("batches", "batch")])
def test_shards_of_an_order_stand_at_one_place(key: str, words: str) -> None:
    text, _ = settled([(shard(i, 2), {key: 4 + i}) for i in range(2)])
    assert f"process 0 stands at {words} 4" in text
    assert "CheckpointRestore" in text
    # Numbers of another kind say nothing of each other.
    assert settled([(shard(0, 2), {"records": 8}), (shard(1, 2), {"batches": 3})]) == ("", 0)


def test_of_streams_of_their_own_only_positions_that_were_set_are_compared() -> None:
    for key in ("batches", "steps"):
        said: list[Any] = [(order(i), {key: i}) for i in range(2)]
        assert settled(said) == ("", 0)
        assert "process 0 stands at" in settled(said, is_set=True)[0]
    # A state that does not say how many steps are behind it may be of any.
    assert settled([(None, {"steps": 3}), (None, {}), (None, {"steps": 3})], is_set=True)[0] == ""


def test_who_has_run_out_may_have_had_fewer_batches_but_not_more() -> None:
    def of(ended: int, *others: int) -> str:
        said: list[Any] = [(shard(i, 3), {"batches": n}) for i, n in enumerate((ended, *others))]
        return settled(said, having=[1, 2])[0]

    assert of(2, 5, 5) == ""
    assert of(5, 5, 5) == ""
    assert "process 0 stands at batch 6 and process 1 at batch 5" in of(6, 5, 5)
    assert "process 1 stands at batch 4 and process 2 at batch 5" in of(2, 4, 5)
    assert settled([(shard(i, 2), {"batches": i}) for i in range(2)], having=[]) == ("", 0)


def rows_of(*kept: Any, held: tuple[int, ...] = (0, 0), rule: str = "pad") -> str:
    """What becomes of batches of processes that hold these blocks of rows; None has no batch."""
    mine = Terms(STAGE, None, 0, lambda: (None, {}))
    mine.__dict__["_held"] = {p: frozenset({(b, b + 1)}) for p, b in enumerate(held)}
    said = {
        p: {"kind": "end"} if k is None else {"kind": "batch", "kept": k}
        for p, k in enumerate(kept)
    }
    return mine.unlike_rows(said, rule)


def kept(rows: int = 4, left_out: int | None = None, content: str = "") -> dict[str, Any]:
    return {"rows": [rows], "left out": left_out, "content": content}


def test_who_holds_the_same_rows_has_them_alike() -> None:
    assert rows_of(kept(), kept()) == ""
    assert "[4] and [3] rows of the batch are real" in rows_of(kept(4), kept(3))
    assert "0 and 1 records were left out" in rows_of(kept(left_out=0), kept(left_out=1))
    assert rows_of(kept(4, 1, "a"), kept(4, 1, "a")) == ""
    assert "not the same ones" in rows_of(kept(4, 1, "a"), kept(4, 1, "b"))
    # Not each of them looks at each batch.
    assert rows_of(kept(4, 1, "a"), kept(4, 1, "")) == ""
    assert "one has a batch, and the other none" in rows_of(kept(), None)
    assert rows_of(kept(), None, rule="drop") == ""
    assert "process 0 and process 2 hold the same" in rows_of(
        kept(), kept(1), kept(3), held=(0, 1, 0)
    )


def test_who_holds_other_rows_may_have_fewer() -> None:
    assert rows_of(kept(4, 0), kept(3, 2), None, held=(0, 1, 2)) == ""


def test_terms_come_with_the_first_message_from_each_position_alone() -> None:
    """One message for streams that are known, and one for each position that is set."""
    from grain_jax._product import lockstep

    def program(index: int) -> Any:
        mine = Terms(STAGE, None, 0, lambda: (shard(index, 2), {"records": 0}))
        mine.__dict__["_held"] = {p: frozenset({(p, p + 1)}) for p in range(2)}
        steps = lockstep.Lockstep([], "drop", terms=mine)
        for _ in range(2):
            for left in (2, 1, 0):
                steps.batch(object(), FACTS, left)
            steps.moved()
        return steps.steps

    assert play(2, program) == ([0, 0], 2)


def test_terms_that_were_refused_are_so_again_until_the_position_is_set() -> None:
    from grain_jax._product import lockstep

    def program(index: int) -> Any:
        at = {"records": 4 * index}
        mine = Terms(STAGE, None, 0, lambda: (shard(index, 2), dict(at)))
        mine.__dict__["_held"] = {p: frozenset({(p, p + 1)}) for p in range(2)}
        steps, seen = lockstep.Lockstep([], "drop", terms=mine), []
        for _ in range(2):
            try:
                seen.append(steps.batch(object(), FACTS, 5, finish=lambda verdict: "take"))
            except ValueError as error:
                seen.append(str(error))
        at["records"] = 4
        steps.moved()
        return [*seen, steps.batch(object(), FACTS, 5, finish=lambda verdict: "take")]

    results, _ = play(2, program)
    assert results[0] == results[1]
    assert (
        "process 0 stands at position 0 of the order and process 1 at position 4" in results[0][0]
    )
    assert results[0] == [results[0][0], results[0][0], "take"]


def test_terms_of_an_end_and_of_an_error() -> None:
    from grain_jax._product import lockstep

    def program(index: int) -> Any:
        mine = Terms(STAGE if index else {}, None, 0, lambda: (None, {}))
        mine.__dict__["_held"] = {}
        steps = lockstep.Lockstep([], "drop", terms=mine)
        texts = []
        if index:
            steps.failed(OSError("the disk is gone"))
        for _ in range(2 - index):
            try:
                steps.batch(object(), FACTS, 5) if not index else steps.end()
            except ValueError as error:
                texts.append(str(error))
        return texts

    (first, second), _ = play(2, program)
    assert first[0] == "process 1 failed at its first batch: OSError: the disk is gone"
    assert first[1:] == second
    assert "remainder: absent on process 0 and 'drop' on process 1" in second[0]


def test_shardings_are_described_alike_in_whatever_words() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    assert described(NamedSharding(mesh, P("data"))) == "on devices of its own"


def test_states_say_how_many_steps_are_behind_them() -> None:
    saved = Saved((8,), None, 3)
    assert with_rows({"next": 3}, saved) == {"batch_rows": 8, "steps": 3, "source": {"next": 3}}
    assert without_rows(with_rows({"next": 3}, saved), 1) == ({"next": 3}, saved)
    state = with_rows(b'{"next": 3}', saved)
    assert without_rows(state, 1) == (b'{"next": 3}', saved)
    for wrong in (-1, "3", 1.5, True):
        with pytest.raises(StateError, match="field 'steps' of the state is"):
            without_rows({"batch_rows": 8, "steps": wrong, "source": {}}, 1)


def test_digests_tell_orders_apart() -> None:
    assert terms._digest({"a": 1, "b": 2}) == terms._digest({"b": 2, "a": 1})
    assert terms._digest({"a": 1}) != terms._digest({"a": 2})
