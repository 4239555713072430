"""Results that wait for others leave their slots when these run short, and arrive as they were."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grain_jax._execution.engine import arena
from grain_jax._execution.engine.pool import Bundle, Pool
from tests.execution.engine import programs
from tests.waiting import until

MODES = ["fork_imported", "fork_first", "fresh"]


@pytest.fixture(autouse=True, params=["memfd", "file"])
def few_slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MAX_SLOTS", 8)
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", request.param)


def ask(pool: Pool, *payload: Any, inputs: Any = ()) -> Bundle:
    bundle = pool.result(pool.submit(0, payload, inputs))
    assert bundle is not None
    return bundle


def settled(pool: Pool) -> int:
    """How many slots can be acquired once every attempt has reported."""

    def reported() -> bool:
        ask(pool, programs.echo)
        return not pool._ledger._flying

    assert until(reported)
    return pool._ledger._slots.available()


@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_results_are_inputs_of_one_task(mode: str) -> None:
    pool = Pool(programs.Call(), workers=2, mode=mode)
    for size in [3, 1000, 70_000]:  # in the message, in the slot, beyond a first mapping
        waiting = [ask(pool, programs.fill, value, size) for value in range(20)]
        order = [*range(10, 20), *range(10)]
        bundle = ask(pool, programs.rows, inputs=[(waiting[value], [0]) for value in order])
        (stacked,) = bundle.load()
        expected = np.repeat(np.array(order)[:, None], size, 1)
        np.testing.assert_array_equal(stacked, expected)
        # They are what they were to those who look at them themselves, too.
        for value, one in enumerate(waiting):
            np.testing.assert_array_equal(one.load()[0], np.full(size, value))
        np.testing.assert_array_equal(stacked, expected)
        del waiting, bundle, stacked, one
    assert settled(pool) == 7
    pool.close()


def test_chosen_rows_of_results_of_many_kinds(tmp_path: Path) -> None:
    pool = Pool(programs.Call(), workers=2)
    values = [[{"a": np.arange(n), "b": str(n)}, n, np.float32(n)] for n in range(15)]
    waiting = [ask(pool, programs.echo, *each) for each in values]
    chosen = [(number, [n % 3, (n + 1) % 3]) for n, number in enumerate(reversed(range(15)))]
    inputs = [(waiting[number], rows) for number, rows in chosen]
    outputs = ask(pool, programs.give_inputs, inputs=inputs).load()
    expected = [values[number][row] for number, rows in chosen for row in rows]
    assert repr(outputs) == repr(expected)
    pool.close()


def test_tasks_that_wait_in_the_queue_find_inputs_that_move_meanwhile() -> None:
    pool = Pool(programs.Call(), workers=1)
    waiting = [ask(pool, programs.fill, value, 100) for value in range(4)]
    tickets = []
    for value in range(40):
        tickets.append(pool.submit(0, (programs.rows,), [(waiting[value % 4], [0])]))
        tickets.append(pool.submit(0, (programs.fill, 100 + value, 100)))
    del waiting
    for number, ticket in enumerate(tickets):
        bundle = pool.result(ticket)
        assert bundle is not None
        value = 100 + number // 2 if number % 2 else number // 2 % 4
        assert (bundle.load()[0] == value).all()
    del bundle
    assert settled(pool) == 7
    pool.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_task_tried_again_finds_all_its_inputs(mode: str, tmp_path: Path) -> None:
    pool = Pool(programs.Call(), workers=2, mode=mode)
    for number, how in enumerate([signal.SIGKILL, signal.SIGSEGV]):
        waiting = [ask(pool, programs.fill, value, 2000) for value in range(20)]
        inputs = [(one, [0]) for one in waiting]
        marker = str(tmp_path / str(number))
        bundle = ask(pool, programs.spoil_and_die_once, marker, how, inputs=inputs)
        np.testing.assert_array_equal(bundle.load()[0][:, 0], range(20))
        assert os.path.exists(marker)
        del waiting, inputs, bundle
    assert settled(pool) == 7
    pool.close()


def test_results_nobody_has_asked_for_make_room_as_well() -> None:
    pool = Pool(programs.Call(), workers=2, buffer=50)
    assert pool.capacity == 4  # half of the slots are enough
    tickets = [pool.submit(0, (programs.fill, value)) for value in range(60)]
    # The last is answered only if the others need no slots.
    for value in reversed(range(60)):
        bundle = pool.result(tickets[value])
        assert bundle is not None
        assert (bundle.load()[0] == value).all()
    pool.close()


def test_all_that_a_user_keeps_stays_beside_what_waits() -> None:
    pool = Pool(programs.Call(), workers=2)
    kept, waiting = [], []
    for value in range(40):
        kept.append(ask(pool, programs.fill, value).load()[0])
        waiting.append(ask(pool, programs.fill, -value))
        if value % 10 == 9:
            (stacked,) = ask(pool, programs.rows, inputs=[(one, [0]) for one in waiting]).load()
            np.testing.assert_array_equal(stacked[:, 3], range(9 - value, -value - 1, -1))
            kept.append(np.full(8, 1000 + value))
            stacked[:] = 1000 + value
            kept.append(stacked[0])
            waiting.clear()
    numbers = [array[0] for array in kept]
    expected: list[int] = []
    for value in range(40):
        expected += [value] + ([1000 + value] * 2 if value % 10 == 9 else [])
    assert numbers == expected
    pool.close()


def test_what_waits_beyond_the_budget_is_this_process_own_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "MAX_SLOTS", 512)
    size = 1 << 17  # 1 MiB of int64
    pool = Pool(programs.Call(), workers=2, slot_budget_bytes=8 << 20)
    waiting = []
    for value in range(40):
        waiting.append(ask(pool, programs.fill, value, size))
        assert os.fstat(pool._arena.descriptor).st_blocks * 512 < 14 << 20
    (stacked,) = ask(pool, programs.rows, inputs=[(one, [0]) for one in waiting]).load()
    assert (stacked == np.arange(40)[:, None]).all()
    pool.close()
    assert (stacked == np.arange(40)[:, None]).all()


def test_cancelling_gives_all_slots_back() -> None:
    pool = Pool(programs.Call(), workers=2)
    for _ in range(5):
        waiting = [ask(pool, programs.fill, value) for value in range(9)]
        pool.submit(0, (programs.rows,), [(one, [0]) for one in waiting])
        for value in range(20):
            pool.submit(0, (programs.fill, value))
        pool.cancel()
        del waiting
    assert settled(pool) == 7
    pool.close()
