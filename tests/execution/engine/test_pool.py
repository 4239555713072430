"""A pool gives back what tasks make, whatever the start mode, order and number of threads."""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grain_jax._execution.engine.arena import is_slot_memory
from grain_jax._execution.engine.pool import Bundle, Pool
from grain_jax._values.errors import ClosedError, InvalidValueError, WorkerError
from tests.execution.engine import programs
from tests.waiting import PATIENCE

MODES = ["fork_imported", "fork_first", "fresh"]


@pytest.fixture(scope="module", params=MODES)
def shared(request: pytest.FixtureRequest, warm: None) -> Iterator[Pool]:
    with_two = Pool(programs.Call(), workers=2, mode=request.param)
    yield with_two
    with_two.close()


def ask(pool: Pool, *payload: Any, inputs: Any = (), label: str = "") -> Bundle:
    bundle = pool.result(pool.submit(0, payload, inputs, label))
    assert bundle is not None
    return bundle


def in_each(pool: Pool, function: Any) -> list[list[Any]]:
    """Runs a function in each of two workers; returns what it gave there."""
    found: dict[int, list[Any]] = {}
    while len(found) < 2:
        tickets = [pool.submit(0, (function, 0.05)) for _ in range(2)]
        for bundle in map(pool.result, tickets):
            assert bundle is not None
            found[bundle.info] = bundle.load()
    return list(found.values())


def test_results_come_by_ticket_in_any_order(shared: Pool) -> None:
    tickets = [shared.submit(0, (programs.fill, value)) for value in range(40)]
    for value in [*range(39, 20, -1), *range(21)]:
        (array,) = shared.result(tickets[value]).load()  # type: ignore[union-attr]
        np.testing.assert_array_equal(array, np.full(8, value))


def test_a_ticket_is_collected_once(shared: Pool) -> None:
    ticket = shared.submit(0, (programs.fill, 1))
    assert shared.result(ticket) is not None
    with pytest.raises(InvalidValueError, match="collected"):
        shared.result(ticket)


def test_more_than_one_process_works(shared: Pool) -> None:
    tickets = [shared.submit(0, (programs.fill, n, 8, 0.1)) for n in range(6)]
    pids = {shared.result(ticket).info for ticket in tickets}  # type: ignore[union-attr]
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_without_blocking_there_may_be_nothing_yet(shared: Pool) -> None:
    ticket = shared.submit(0, (programs.fill, 5, 8, 0.3))
    assert shared.result(ticket, block=False) is None
    assert shared.result(ticket) is not None


def test_arrays_are_writable_aligned_and_stay(shared: Pool) -> None:
    held = []
    for value in range(50):
        (array,) = ask(shared, programs.fill, value, 1000).load()
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0
        assert is_slot_memory(array)
        assert is_slot_memory(array[3:].reshape(-1, 1))
        held.append(array[10:20])
    for value, part in enumerate(held):
        np.testing.assert_array_equal(part, np.full(10, value))


def test_a_slot_is_used_again_when_its_arrays_are_gone(shared: Pool) -> None:
    for _ in range(5):  # so that slots exist
        ask(shared, programs.fill, 0)
    slots = {ask(shared, programs.fill, n).place[0] for n in range(30)}
    assert len(slots) < 10


def test_rows_of_bundles_are_inputs(shared: Pool) -> None:
    first = ask(shared, programs.echo, np.arange(3), np.arange(3) + 10)
    second = ask(shared, programs.echo, np.arange(3) + 20, np.arange(3) + 30)
    assert len(first) == 2
    ticket = shared.submit(0, (programs.rows,), [(second, [1, 0]), (first, [1]), (second, [1])])
    del first, second
    gc.collect()
    (stacked,) = shared.result(ticket).load()  # type: ignore[union-attr]
    np.testing.assert_array_equal(stacked[:, 0], [30, 20, 10, 30])


def test_a_payload_larger_than_a_message_arrives(shared: Pool) -> None:
    payload = np.random.default_rng(0).integers(0, 100, 300_000)
    (back,) = ask(shared, programs.echo, payload).load()
    np.testing.assert_array_equal(back, payload)


def test_outputs_larger_than_a_first_mapping_arrive(shared: Pool) -> None:
    arrays = ask(shared, programs.fill, 7, 3_000_000).load()
    assert arrays[0].sum() == 21_000_000


def test_cancelled_tickets_are_forgotten_and_their_slots_come_back(shared: Pool) -> None:
    slots = shared._ledger._slots
    before = slots.available()
    for _ in range(10):
        tickets = [shared.submit(0, (programs.fill, n, 8, 0.02)) for n in range(4)]
        shared.cancel()
        with pytest.raises(InvalidValueError, match="cancelled"):
            shared.result(tickets[0])
    np.testing.assert_array_equal(ask(shared, programs.fill, 3).load()[0], np.full(8, 3))
    while slots.available() < before:  # each comes back once its worker has done with it
        ask(shared, programs.fill, 3)
    assert slots.available() == before
    assert not shared._ledger._answers


def test_an_output_that_does_not_pickle_is_named(shared: Pool) -> None:
    with pytest.raises(TypeError, match="pickle") as caught:
        ask(shared, programs.open_file)
    assert "['file'] of a dict is a _io.BufferedReader" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_polite_exit_is_an_answer(shared: Pool, kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        ask(shared, programs.fail, kind, 3)


def test_an_exception_names_the_users_line(shared: Pool) -> None:
    with pytest.raises(ValueError, match="bad record") as caught:
        ask(shared, programs.fail, ValueError, "bad record")
    (note,) = caught.value.__notes__
    assert "programs.py" in note
    assert "raise kind(*arguments)" in note
    assert "worker.py" not in note


def test_a_long_error_is_itself_too(shared: Pool) -> None:
    with pytest.raises(ValueError, match="xxx") as caught:
        ask(shared, programs.fail, ValueError, "x" * 200_000)
    assert len(str(caught.value)) == 200_000


def test_surroundings_are_the_trainers(shared: Pool) -> None:
    (seen,) = ask(shared, programs.look).load()
    assert not seen["jax"]
    assert seen["environment"]["JAX_PLATFORMS"] == "cpu"
    assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["environment"]["OMP_NUM_THREADS"] == "1"
    assert seen["environment"]["PATH"] == os.environ["PATH"]
    assert seen["cwd"] == os.getcwd()
    assert seen["main"] is None
    assert seen["threads"] == 1
    assert seen["sigint"]
    assert seen["sigterm"]


def test_a_transform_may_run_other_programs(shared: Pool) -> None:
    assert ask(shared, programs.run_child).load() == [b"5\n"]


def test_threads_may_share_a_pool(shared: Pool) -> None:
    wrong: list[Any] = []

    def work(first: int) -> None:
        for value in range(first, first + 50):
            (array,) = ask(shared, programs.fill, value).load()
            if not (array == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_inputs_that_a_worker_keeps_do_not_change(shared: Pool) -> None:
    in_each(shared, programs.drop)
    for value in range(100, 108):
        bundle = ask(shared, programs.fill, value)
        for _ in range(2):
            ask(shared, programs.keep_inputs, inputs=[(bundle, [0])])
    del bundle
    for value in range(30):
        ask(shared, programs.fill, value)
    kept = [array.tolist() for arrays in in_each(shared, programs.kept) for array in arrays]
    assert sorted(kept) == [[value] * 8 for value in range(100, 108) for _ in range(2)]
    in_each(shared, programs.drop)
    slots = shared._ledger._slots
    while slots._parked and slots._table.retained.any():
        for value in range(4):  # slots circulate again
            ask(shared, programs.fill, value, 8, 0.001)


def test_what_a_worker_keeps_does_not_change(shared: Pool) -> None:
    in_each(shared, programs.drop)
    for value in range(100, 110):
        ask(shared, programs.keep, value)
    for value in range(30):
        ask(shared, programs.fill, value)
    kept = [array.tolist() for arrays in in_each(shared, programs.kept) for array in arrays]
    assert sorted(kept) == [[value] * 8 for value in range(100, 110)]
    in_each(shared, programs.drop)


@pytest.mark.parametrize("mode", MODES)
def test_init_runs_once_in_every_worker(mode: str, tmp_path: Path) -> None:
    pool = Pool(programs.Call(), workers=2, mode=mode, init=partial(programs.note, str(tmp_path)))
    pids = {pool.result(pool.submit(0, (programs.fill, 0, 8, 0.2))).info for _ in range(4)}  # type: ignore[union-attr]
    tickets = [pool.submit(0, (programs.fill, 0, 8, 0.3)) for _ in range(4)]
    pids |= {pool.result(ticket).info for ticket in tickets}  # type: ignore[union-attr]
    pool.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{path.name[0]}-of-2-{pid}" for pid in pids for path in tmp_path.glob(f"*-{pid}")
    )
    assert {path.name[0] for path in tmp_path.iterdir()} == {"0", "1"}


def test_an_init_that_fails_is_its_own_error() -> None:
    pool = Pool(programs.Call(), workers=1, init=partial(programs.note, "/no/such/folder"))
    ticket = pool.submit(0, (programs.fill, 4))
    with pytest.raises(FileNotFoundError, match="/no/such/folder"):
        pool.result(ticket)
    pool.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_starts_threads_as_it_loads(mode: str) -> None:
    pool = Pool(programs.Threaded(), workers=2, mode=mode)
    np.testing.assert_array_equal(ask(pool, programs.fill, 4).load()[0], np.full(8, 4))
    assert pool.mode == mode  # each worker has a thread of its own
    pool.close()


# What a module leaves as it is imported, and what a worker sees of it, call by call.
LEFT = {
    "thread": ("threading.Timer(1000, print); X.daemon = True; X.start()", "X.is_alive()"),
    "file": ("os.open(__file__, os.O_RDONLY)", "os.read(X, 2).decode()"),
    "socket": ("socket.socketpair()", "X[0].send(b'me') == 2 and X[1].recv(9) == b'me'"),
    "memory": ("mmap.mmap(-1, 4096)", "X.read(1) == bytes(1)"),
    "nothing": ("[0]", "X.append(0) or len(X)"),
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_a_module_leaves_open_is_each_workers_own(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_process_left: None
) -> None:
    left, seen = LEFT[kind]
    name = f"leaves_{kind}"
    text = (
        f"import mmap, os, socket, threading\nX = {left}\n"
        f"def see(inputs, allocate):\n    return [{seen}], os.getpid()\n"
    )
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    see = importlib.import_module(name).see
    program = programs.Holding(see)
    for _ in range(2):
        # The number of a descriptor is not the same in a worker.
        pool = Pool(program, workers=2, mode="fork_imported", ignored=["leaves_file.X"])
        by_worker: dict[int, list[Any]] = {}
        for _ in range(12):
            bundle = ask(pool, see)
            by_worker.setdefault(bundle.info, []).extend(bundle.load())
        assert pool.mode == ("fork_imported" if kind == "nothing" else "fork_first")
        pool.close()
        for answers in by_worker.values():
            if kind == "file":
                assert "".join(answers) == text[: 2 * len(answers)]
            elif kind == "nothing":
                assert answers == [*range(2, 2 + len(answers))]
            else:
                assert answers == [True] * len(answers)


def test_modules_are_imported_once_and_a_failing_import_is_the_workers_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = f"with open({str(tmp_path / 'count')!r}, 'a') as file:\n    file.write('x')\n"
    see = "def see(inputs, allocate):\n    return [1], None\n"
    (tmp_path / "counts_imports.py").write_text(counted + see)
    monkeypatch.syspath_prepend(tmp_path)
    program = programs.Holding(importlib.import_module("counts_imports").see)
    pool = Pool(program, workers=3, mode="fork_imported")
    assert ask(pool, program.held).load() == [1]
    pool.close()
    assert (tmp_path / "count").read_text() == "xx"  # here, and once for all workers
    (tmp_path / "counts_imports.py").write_text("raise OSError('no such weights')\n" + see)
    pool = Pool(program, workers=2, mode="fork_imported")
    with pytest.raises(OSError, match="no such weights") as caught:
        ask(pool, programs.fill, 1)
    pool.close()
    assert "counts_imports.py" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_does_not_load_is_its_own_error(mode: str) -> None:
    pool = Pool(programs.Unloadable(), workers=2, mode=mode)
    ticket = pool.submit(0, (programs.fill, 4))
    with pytest.raises(RuntimeError, match="no such table here") as caught:
        pool.result(ticket)
    assert any("programs.py" in note for note in caught.value.__notes__)
    pool.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_ends_its_process_is_an_error(mode: str) -> None:
    pool = Pool(programs.DiesWhenLoaded(), workers=2, mode=mode)
    ticket = pool.submit(0, (programs.fill, 4))
    with pytest.raises(WorkerError, match=r"exit code 7|has died 4 times without a result"):
        pool.result(ticket)
    pool.close()


def test_a_worker_says_that_it_has_loaded() -> None:
    pool = Pool(programs.Call(), workers=1)
    pool._ledger._lost_starts[0] = 2  # deaths as it loads, so far
    pool._ledger._lost_helpers = 2
    while pool._ledger._lost_starts:  # nothing was asked for
        pool._wait()
    assert pool._ledger._lost_helpers == 2  # that is no result
    pool.close()


def test_memory_stays_within_the_budget_though_all_is_kept() -> None:
    size = 1 << 17  # 1 MiB of int64
    pool = Pool(programs.Call(), workers=2, slot_budget_bytes=8 << 20)
    held = []
    for value in range(60):
        held.append(ask(pool, programs.fill, value, size).load()[0])
        assert os.fstat(pool._arena.descriptor).st_blocks * 512 < 13 << 20
    assert all(is_slot_memory(array) and array.flags.writeable for array in held)
    for value, array in enumerate(held):
        assert (array == value).all()
    pool.close()
    for value, array in enumerate(held):
        assert (array == value).all()


def test_free_memory_beyond_the_budget_is_given_back() -> None:
    pool = Pool(programs.Call(), workers=2, slot_budget_bytes=8 << 20)
    held = [ask(pool, programs.fill, value, 1 << 19).load()[0] for value in range(2)]
    del held
    for value in range(12):
        assert (ask(pool, programs.fill, value, 1 << 19).load()[0] == value).all()
    assert os.fstat(pool._arena.descriptor).st_blocks * 512 < 14 << 20
    pool.close()


def test_many_small_results_kept_use_no_descriptors() -> None:
    pool = Pool(programs.Call(), workers=2)
    before = len(os.listdir("/proc/self/fd"))
    held = [ask(pool, programs.fill, value).load()[0] for value in range(1500)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all((array == value).all() for value, array in enumerate(held))
    pool.close()


def test_more_kept_than_there_are_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grain_jax._execution.engine.arena.MAX_SLOTS", 12)
    pool = Pool(programs.Call(), workers=2)
    held = [ask(pool, programs.fill, value).load()[0] for value in range(50)]
    assert all((array == value).all() for value, array in enumerate(held))
    pool.close()


@pytest.mark.parametrize("mode", MODES)
def test_close_leaves_no_descriptor(mode: str) -> None:
    Pool(programs.Call(), workers=1, mode=mode).close()
    before = sorted(os.listdir("/proc/self/fd"))
    for submitted in range(3):
        pool = Pool(programs.Call(), workers=2, mode=mode)
        for value in range(submitted):
            ask(pool, programs.fill, value)
        pool.close()
        pool.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_close_while_another_thread_waits() -> None:
    pool = Pool(programs.Call(), workers=1)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            ask(pool, programs.fill, 0, 8, 100)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not pool._is_polled:
        pass
    pool.close()
    thread.join(PATIENCE)
    assert isinstance(caught[0], ClosedError)
    with pytest.raises(ClosedError, match="closed"):
        pool.submit(0, ())


def test_a_pool_that_is_dropped_is_closed() -> None:
    pool = Pool(programs.Call(), workers=1)
    (array,) = ask(pool, programs.fill, 6).load()
    del pool
    gc.collect()
    assert (array == 6).all()


def test_a_stall_names_the_task() -> None:
    pool = Pool(programs.Call(), workers=1, stall_timeout=2)
    assert ask(pool, programs.fill, 1)
    ticket = pool.submit(0, (programs.fill, 0, 8, 100), label="positions 32..47")
    with pytest.raises(
        WorkerError, match=r"worker 0 \(pid \d+\), \d+\.\d s into its task: positions 32\.\.47"
    ):
        pool.result(ticket)
    pool.close()


def test_a_bundle_of_another_pool_is_refused(shared: Pool) -> None:
    pool = Pool(programs.Call(), workers=1)
    bundle = ask(pool, programs.fill, 1)
    with pytest.raises(InvalidValueError, match="its own pool"):
        shared.submit(0, (programs.rows,), [(bundle, [0])])
    pool.close()


def test_no_workers_are_no_pool() -> None:
    with pytest.raises(InvalidValueError, match="at least 1 worker"):
        Pool(programs.Call(), workers=0)


@pytest.mark.parametrize("mode", MODES)
def test_files_and_datagrams_serve_where_the_kernel_has_no_better(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    monkeypatch.setenv("GRAIN_JAX_ENGINE_SOCKET", "dgram")
    with_files = Pool(programs.Call(), workers=2, mode=mode)
    tickets = [with_files.submit(0, (programs.fill, value, 100_000)) for value in range(30)]
    held = [with_files.result(ticket).load()[0] for ticket in tickets]  # type: ignore[union-attr]
    payload = np.arange(50_000)
    np.testing.assert_array_equal(ask(with_files, programs.echo, payload).load()[0], payload)
    with pytest.raises(ValueError, match="x"):
        ask(with_files, programs.fail, ValueError, "x")
    with_files.close()
    assert all((array == value).all() for value, array in enumerate(held))
