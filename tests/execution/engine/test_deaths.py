"""Workers, helpers and the zygote may die: contents stay right, or there is an error in seconds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grain_jax._execution.engine import launch
from grain_jax._execution.engine.pool import Bundle, Pool
from grain_jax._values.errors import ClosedError, WorkerError
from tests.execution.engine import programs
from tests.processes import children

MODES = ["fork_imported", "fork_first", "fresh"]


def ask(pool: Pool, *payload: Any, label: str = "") -> Bundle:
    bundle = pool.result(pool.submit(0, payload, (), label))
    assert bundle is not None
    return bundle


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_death_beside_a_slow_worker_changes_no_contents(
    mode: str, how: int, tmp_path: Path
) -> None:
    size = 20_000
    pool = Pool(programs.Call(), workers=2, mode=mode)
    payloads: list[Any] = [(programs.slow_halves, 0, size, 0.4)]
    payloads += [(programs.fill, value, size) for value in range(1, 4)]
    payloads += [(programs.die_once, 4, size, str(tmp_path / "died"), how)]
    payloads += [(programs.fill, value, size) for value in range(5, 30)]
    held = []
    tickets: list[int] = []
    for value in range(30):
        while len(tickets) < min(30, value + pool.capacity):
            tickets.append(pool.submit(0, payloads[len(tickets)]))
        held.append(pool.result(tickets[value]).load()[0])  # type: ignore[union-attr]
    time.sleep(0.1)
    for value, array in enumerate(held):
        np.testing.assert_array_equal(array, np.full(size, value))
    pool.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_always_kills_its_worker_is_an_error(mode: str) -> None:
    pool = Pool(programs.Call(), workers=2, mode=mode, max_worker_restarts=1)
    ticket = pool.submit(0, (programs.die,), label="positions 8..15")
    after = pool.submit(0, (programs.fill, 9))
    with pytest.raises(
        WorkerError, match=r"2 times at positions 8\.\.15.*SIGKILL.*out of memory\?"
    ):
        pool.result(ticket)
    assert (pool.result(after).load()[0] == 9).all()  # type: ignore[union-attr]
    with pytest.raises(WorkerError, match="exit code 5"):
        ask(pool, programs.leave, 5)
    assert (ask(pool, programs.fill, 9).load()[0] == 9).all()
    pool.close()


def test_no_restarts_is_an_error_at_once() -> None:
    pool = Pool(programs.Call(), workers=1, max_worker_restarts=0)
    with pytest.raises(WorkerError, match="died once at a"):
        ask(pool, programs.die, label="a")
    pool.close()


def test_workers_killed_again_and_again_lose_nothing() -> None:
    pool = Pool(programs.Call(), workers=2, max_worker_restarts=100)
    random = np.random.default_rng(0)
    tickets = [pool.submit(0, (programs.fill, value, 500, 0.002)) for value in range(4)]
    pids = set()
    for value in range(200):
        tickets.append(pool.submit(0, (programs.fill, value + 4, 500, 0.002)))
        bundle = pool.result(tickets[value])
        assert bundle is not None
        pids.add(bundle.info)
        assert (bundle.load()[0] == value).all()
        if random.random() < 0.1:
            victims = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
            if victims:
                os.kill(victims[-1], signal.SIGKILL)
    pool.cancel()
    for value in range(20):  # by now nothing is in doubt and slots circulate
        ask(pool, programs.fill, value)
    assert pool._ledger._slots._fresh < 40
    pool.close()


def test_an_idle_worker_killed_is_replaced() -> None:
    pool = Pool(programs.Call(), workers=1)
    first = ask(pool, programs.fill, 0).info
    os.kill(first, signal.SIGKILL)
    second = ask(pool, programs.fill, 0).info
    assert second != first
    pool.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sockets", ["", "dgram"])
def test_a_dead_helper_is_replaced_again_and_again(
    mode: str, sockets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_SOCKET", sockets)  # datagrams have no end of file
    pool = Pool(programs.Call(), workers=2, mode=mode, max_worker_restarts=1)
    held = [ask(pool, programs.fill, value).load()[0] for value in range(5)]
    for value in range(5, 9):
        ticket = pool.submit(0, (programs.fill, value, 8, 0.2))
        os.kill(pool._helper.pid, signal.SIGKILL)
        held.append(pool.result(ticket).load()[0])  # type: ignore[union-attr]
    assert all((array == value).all() for value, array in enumerate(held))
    ask(pool, programs.fill, 0)
    assert not pool._ledger._orphans
    assert pool._ledger._slots._fresh < 20
    pool.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_always_kills_the_helper_is_an_error(mode: str) -> None:
    pool = Pool(programs.Call(), workers=2, mode=mode, max_worker_restarts=1)
    ticket = pool.submit(0, (programs.kill_parent,), label="positions 8..15")
    with pytest.raises(WorkerError, match=r"2 times at positions 8\.\.15.*starts the workers"):
        pool.result(ticket)
    assert (ask(pool, programs.fill, 9).load()[0] == 9).all()
    pool.close()


def test_helpers_that_die_before_any_result_are_an_error() -> None:
    pool = Pool(programs.Call(), workers=1, max_worker_restarts=2)
    ticket = pool.submit(0, (programs.fill, 1, 8, 100))
    ticket_of_no_worker = pool.submit(0, (programs.fill, 2))
    for _ in range(3):
        while not pool._helper.pid:
            assert pool.result(ticket, block=False) is None
        os.kill(pool._helper.pid, signal.SIGKILL)
        pool._helper.pid = 0
    with pytest.raises(WorkerError, match="has died 3 times without a result in between"):
        pool.result(ticket_of_no_worker)
    pool.close()


def test_a_dead_zygote_is_replaced() -> None:
    pool = Pool(programs.Call(), workers=1)
    ask(pool, programs.fill, 1)
    assert launch._shared is not None
    os.kill(launch._shared.process.pid, signal.SIGKILL)
    assert (ask(pool, programs.fill, 2).load()[0] == 2).all()
    pool.close()
    pool = Pool(programs.Call(), workers=1)
    assert (ask(pool, programs.fill, 3).load()[0] == 3).all()
    pool.close()


def test_the_zygote_ends_with_its_last_user() -> None:
    before = children()
    handle = launch.keep_alive()
    pool = Pool(programs.Call(), workers=1)
    ask(pool, programs.fill, 1)
    zygote = handle.zygote.process.pid
    pool.close()
    handle.close()
    handle.close()
    assert children() <= before | {zygote}  # others of this session keep it


def test_a_forked_copy_of_the_trainer_refuses_and_leaves_the_pool_alone() -> None:
    pool = Pool(programs.Call(), workers=1)
    ask(pool, programs.fill, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pool.submit(0, (programs.fill, 1))
        except ClosedError as error:
            code = 0 if "fork" in str(error) else 2
        pool.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (ask(pool, programs.fill, 2).load()[0] == 2).all()
    pool.close()


def test_a_forked_copy_may_have_a_pool_of_its_own() -> None:
    pool = Pool(programs.Call(), workers=1)
    ask(pool, programs.fill, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = Pool(programs.Call(), workers=1)
            code = 0 if (ask(own, programs.fill, 2).load()[0] == 2).all() else 2
            own.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (ask(pool, programs.fill, 2).load()[0] == 2).all()
    pool.close()


def test_a_full_disk_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    pool = Pool(programs.Call(), workers=1)
    with pytest.raises((OSError, MemoryError)):
        ask(pool, programs.fill, 1, 1 << 42)
    assert (ask(pool, programs.fill, 2).load()[0] == 2).all()
    pool.close()
