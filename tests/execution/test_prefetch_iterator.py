"""An iterator run ahead: positions, errors, ownership, and what `close` closes."""

from __future__ import annotations

import functools
import gc
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from grain_jax._execution import prefetch_iterator
from grain_jax._execution.ownership import Owned, Owner, refuse_owned
from grain_jax._execution.prefetch_iterator import PrefetchIterator
from grain_jax._execution.producing import SKIP
from grain_jax._values.errors import ClosedError, InvalidTypeError
from tests.execution.test_ahead import no_thread_left
from tests.waiting import PATIENCE, until

__all__ = ["no_thread_left"]


class Counter:
    """An iterator with a state that it mutates, as users write them."""

    def __init__(self, stop: int, fail_at: tuple[int, ...] = ()) -> None:
        self.stop = stop
        self.failures = list(fail_at)
        self.position = {"next": 0}
        self.closed = 0

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        if self.position["next"] in self.failures:
            self.failures.remove(self.position["next"])
            self.position["next"] += 5  # an error that leaves the source somewhere else
            raise OSError("flaky")
        if self.position["next"] >= self.stop:
            raise StopIteration
        self.position["next"] += 1
        return self.position["next"] - 1

    def get_state(self) -> dict[str, int]:
        return self.position

    def set_state(self, state: dict[str, int]) -> None:
        if not 0 <= state["next"] <= self.stop:
            raise ValueError(f"{state} is outside 0..{self.stop}")
        self.position = state

    def close(self) -> None:
        self.closed += 1


class LendingCounter(Counter):
    """The same, as the iterators of the library take part in ownership."""

    owner: Owner | None = None

    def __next__(self) -> int:
        refuse_owned(self, self.owner)
        return super().__next__()

    def get_state(self) -> dict[str, int]:
        own = dict(self.position)
        return self.owner.get_state(lambda: own) if self.owner else own

    def set_state(self, state: dict[str, int]) -> None:
        if self.owner:
            self.owner.set_state(state)
        else:
            super().set_state(dict(state))

    def _hand_over(self, owner: Owner) -> Owned:
        refuse_owned(self, self.owner)
        self.owner = owner
        iterator = self

        class Loan:
            has_state = True
            draws = ""
            is_fresh = False

            def next(self) -> int:
                return super(LendingCounter, iterator).__next__()

            def state(self) -> dict[str, int]:
                return dict(iterator.position)

            def set_state(self, state: dict[str, int]) -> None:
                super(LendingCounter, iterator).set_state(dict(state))

            def close(self) -> None:
                iterator.close()

        return Loan()


def ahead(
    source: Any, convert: Any = lambda x: x, size: int = 3, **more: Any
) -> PrefetchIterator[Any]:
    return PrefetchIterator(source, convert, size, **more)


@pytest.mark.parametrize("source", [Counter, LendingCounter])
@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_state_at_every_step_restores_the_rest(source: type[Counter], size: int) -> None:
    states = []
    with ahead(source(9), lambda x: SKIP if x % 3 == 1 else x * 10, size) as iterator:
        whole = []
        states.append(iterator.get_state())
        for element in iterator:
            whole.append(element)
            states.append(iterator.get_state())
    assert whole == [0, 20, 30, 50, 60, 80]
    for step, state in enumerate(states):
        with ahead(source(9), lambda x: SKIP if x % 3 == 1 else x * 10, size) as fresh:
            fresh.set_state(state)
            assert fresh.get_state() == state
            assert list(fresh) == whole[step:]


def test_set_state_goes_back_and_forth_on_one_iterator() -> None:
    with ahead(Counter(9)) as iterator:
        start = iterator.get_state()
        assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
        middle = iterator.get_state()
        assert list(iterator) == [4, 5, 6, 7, 8]
        iterator.set_state(middle)
        assert next(iterator) == 4
        iterator.set_state(start)
        assert list(iterator) == list(range(9))


def test_a_state_that_was_handed_out_can_be_changed_without_harm() -> None:
    with ahead(Counter(5)) as iterator:
        next(iterator)
        iterator.get_state()["next"] = 4
        assert iterator.get_state() == {"next": 1}


def test_a_refused_state_changes_nothing() -> None:
    with ahead(Counter(9)) as iterator:
        assert [next(iterator), next(iterator)] == [0, 1]
        with pytest.raises(ValueError, match="outside"):
            iterator.set_state({"next": 99})
        assert iterator.get_state() == {"next": 2}
        assert list(iterator) == list(range(2, 9))


def test_an_error_does_not_move_the_position() -> None:
    with ahead(Counter(8, fail_at=(0, 3, 5))) as iterator:
        seen: list[Any] = []
        for _ in range(20):
            try:
                seen.append(next(iterator))
            except OSError:
                seen.append(iterator.get_state())
            except StopIteration:
                break
    assert seen == [{"next": 0}, 0, 1, 2, {"next": 3}, 3, 4, {"next": 5}, 5, 6, 7]


@pytest.mark.parametrize("make", [Counter, lambda n: list(range(n)), lambda n: iter(range(n))])
def test_an_error_in_converting_comes_again_since_the_element_does(make: Any) -> None:
    refusals = [1, 1, 1, 4, 4]

    def convert(x: int) -> int:
        if refusals and x == refusals[0]:
            raise ValueError(f"element {refusals.pop(0)}")
        return x

    with ahead(make(6), convert) as iterator:
        assert next(iterator) == 0
        for _ in range(3):
            with pytest.raises(ValueError, match="element 1"):
                next(iterator)
        assert [next(iterator) for _ in range(3)] == [1, 2, 3]
        for _ in range(2):
            with pytest.raises(ValueError, match="element 4"):
                next(iterator)
        assert list(iterator) == [4, 5]


def test_a_refused_element_does_not_come_at_another_position() -> None:
    refused = [3]

    def convert(x: int) -> int:
        if x in refused:
            raise ValueError("three")
        return x

    with ahead(Counter(6), convert) as iterator:
        start = iterator.get_state()
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(iterator)
        assert iterator.get_state() == {"next": 3}
        iterator.set_state(start)
        refused.clear()
        assert list(iterator) == [0, 1, 2, 3, 4, 5]


def test_a_source_without_state_is_asked_again_after_an_error() -> None:
    class Flaky:
        calls = 0

        def __iter__(self) -> Flaky:
            return self

        def __next__(self) -> int:
            self.calls += 1
            if self.calls == 2:
                raise OSError("flaky")
            if self.calls > 4:
                raise StopIteration
            return self.calls

    with ahead(Flaky()) as iterator:
        assert next(iterator) == 1
        with pytest.raises(OSError, match="flaky"):
            next(iterator)
        assert list(iterator) == [3, 4]
        with pytest.raises(InvalidTypeError, match="a Flaky has no get_state and set_state"):
            iterator.get_state()
        with pytest.raises(InvalidTypeError, match="a Flaky has no get_state and set_state"):
            iterator.set_state(0)


def test_an_error_on_the_way_to_the_user_loses_nothing() -> None:
    class Picky(PrefetchIterator[int]):
        refusals = 1

        def _deliver(self, element: int) -> int:
            if element == 1 and self.refusals:
                self.refusals -= 1
                raise ValueError("not now")
            return element

    with Picky(iter(range(3)), lambda x: x, 2) as iterator:
        assert next(iterator) == 0
        with pytest.raises(ValueError, match="not now"):
            next(iterator)
        assert list(iterator) == [1, 2]


def test_reading_starts_at_the_first_next_or_when_told() -> None:
    source = Counter(9)
    iterator = ahead(source)
    time.sleep(0.02)
    assert source.position == {"next": 0}
    iterator.start_prefetch()
    assert until(lambda: source.position == {"next": 3})
    iterator.start_prefetch()
    assert iterator.get_state() == {"next": 0}
    assert next(iterator) == 0
    iterator.close()


def test_an_owned_iterator_belongs_to_its_owner() -> None:
    inner = LendingCounter(9)
    with ahead(inner) as outer:
        assert [next(outer), next(outer)] == [0, 1]
        with pytest.raises(ClosedError, match="LendingCounter was given to another iterator"):
            next(inner)
        assert inner.get_state() == outer.get_state() == {"next": 2}
        inner.set_state({"next": 7})
        assert outer.get_state() == {"next": 7}
        with pytest.raises(ClosedError, match="was given to another"):
            ahead(inner)
        assert list(outer) == [7, 8]


def test_start_prefetch_of_an_owned_iterator_starts_its_owner() -> None:
    source = Counter(9)
    inner = ahead(source)
    outer = ahead(inner)
    inner.set_state({"next": 2})
    inner.start_prefetch()
    assert until(lambda: source.position == {"next": 8})
    assert next(outer) == 2
    outer.close()
    inner.close()


@pytest.fixture
def close_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, what ends within a second elsewhere may need longer."""
    monkeypatch.setattr(prefetch_iterator, "_CLOSED_AFTER", PATIENCE)
    monkeypatch.setattr(prefetch_iterator, "_CLOSING", PATIENCE)


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_a_generator_that_was_made_here_is_closed_whether_it_is_slow_or_not(
    pause: float, close_waits: None
) -> None:
    ended: list[float] = []

    class Collection:
        def __iter__(self) -> Iterator[int]:
            try:
                while True:
                    yield 1
                    time.sleep(pause)
            finally:
                ended.append(pause)

    iterator = ahead(Collection(), size=2)
    next(iterator)
    iterator.close()
    assert ended == [pause]


def test_tracebacks_begin_with_the_user() -> None:
    def convert(x: int) -> int:
        raise ValueError("mine")

    with ahead(Counter(3), convert) as iterator, pytest.raises(ValueError, match="mine") as caught:
        next(iterator)
    names = [entry.name for entry in caught.traceback]
    assert names == ["test_tracebacks_begin_with_the_user", "convert"]


def test_iterators_run_ahead_one_behind_another() -> None:
    first = LendingCounter(9)
    second = ahead(first, lambda x: x + 100)
    third = ahead(second, lambda x: x * 2)
    assert [next(third), next(third)] == [200, 202]
    with pytest.raises(ClosedError, match="PrefetchIterator was given to another iterator"):
        next(second)
    assert until(lambda: first.position["next"] == 8)
    assert first.get_state() == second.get_state() == third.get_state() == {"next": 2}
    second.set_state({"next": 6})
    assert first.get_state() == {"next": 6}
    assert next(third) == 212
    first.set_state({"next": 8})
    assert list(third) == [216]
    third.close()
    second.close()


def test_dropping_the_iterator_ends_its_thread_and_frees_the_source() -> None:
    inner = LendingCounter(9)
    outer = ahead(inner)
    next(outer)
    assert outer._run is not None
    thread = outer._run._channel.thread
    del outer
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert inner.get_state() == {"next": 1}
    with pytest.raises(ClosedError, match="is gone"):
        inner.set_state({"next": 0})


@pytest.mark.parametrize("close_source", [False, True])
def test_close_closes_a_given_source_only_if_told(close_source: bool) -> None:
    source = Counter(9)
    iterator = ahead(source, close_source=close_source)
    next(iterator)
    state = iterator.get_state()
    iterator.close()
    iterator.close()
    assert source.closed == close_source
    assert iterator.get_state() == state
    for use in (
        lambda: next(iterator),
        iterator.start_prefetch,
        lambda: iterator.set_state({"next": 0}),
    ):
        with pytest.raises(ClosedError, match="PrefetchIterator was closed"):
            use()


@pytest.mark.parametrize("close_source", [False, True])
def test_close_closes_the_iterator_that_it_made(close_source: bool) -> None:
    class Collection:
        closed = 0
        iterator = Counter(3)

        def __iter__(self) -> Counter:
            return self.iterator

        def close(self) -> None:
            self.closed += 1

    collection = Collection()
    with ahead(collection, close_source=close_source) as iterator:
        assert list(iterator) == [0, 1, 2]
    assert (collection.iterator.closed, collection.closed) == (1, close_source)


class Blocking:
    """Its second read blocks until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.reading = threading.Event()
        self.reads = 0

    def __iter__(self) -> Blocking:
        return self

    def __next__(self) -> int:
        self.reads += 1
        if self.reads == 2:
            self.reading.set()
            assert self.closed.wait(30)
            raise StopIteration
        return self.reads

    def close(self) -> None:
        self.closed.set()


def test_close_closes_a_source_that_blocks_it(close_waits: None) -> None:
    source = Blocking()
    iterator = ahead(source)
    assert next(iterator) == 1
    assert source.reading.wait(PATIENCE)
    iterator.close()
    assert source.closed.is_set()


@pytest.mark.parametrize("close_source", [False, True])
def test_close_closes_a_collection_whose_generator_blocks_it_only_if_told(
    close_source: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch_iterator, "_CLOSING", PATIENCE)

    class Collection(Blocking):
        def __iter__(self) -> Iterator[int]:  # type: ignore[override]
            yield from iter(super().__next__, None)

    source = Collection()
    iterator = ahead(source, close_source=close_source)
    assert next(iterator) == 1
    assert source.reading.wait(PATIENCE)
    iterator.close()
    assert source.closed.is_set() == close_source
    source.closed.set()


def test_close_wakes_a_next_in_another_thread() -> None:
    source = Blocking()
    iterator = ahead(source)
    next(iterator)
    seen: list[BaseException] = []

    def take() -> None:
        try:
            next(iterator)
        except BaseException as error:
            seen.append(error)

    taker = threading.Thread(target=take)
    taker.start()
    assert source.reading.wait(PATIENCE)
    iterator.close()
    taker.join(PATIENCE)
    assert [type(error) for error in seen] == [ClosedError]


def test_close_returns_though_nothing_lets_go_of_the_source() -> None:
    gate = threading.Event()

    def stuck() -> Iterator[int]:
        yield 1
        gate.wait()  # the test's timeout is what `close` would wait for

    iterator = ahead(stuck())
    assert next(iterator) == 1
    iterator.close()
    gate.set()


def test_what_is_no_source_is_refused() -> None:
    for source in (3, {"x": 1}, "text", None):
        with pytest.raises(InvalidTypeError, match=f"a {type(source).__name__} is no source"):
            ahead(source)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals reach no chosen thread")
@pytest.mark.parametrize("ends_waits", [True, False])
def test_an_interrupted_wait_loses_nothing(
    ends_waits: bool, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(
        functools.partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
    )
    # Polars, for one, sets SIGINT up so that system calls go on after it.
    signal.siginterrupt(signal.SIGINT, ends_waits)
    gate = threading.Event()

    def slow() -> Iterator[int]:
        yield 0
        gate.wait()
        yield from (1, 2, 3)

    def interrupt() -> None:
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    with ahead(slow()) as iterator:
        assert next(iterator) == 0
        for _ in range(2):
            interrupter = threading.Thread(target=interrupt)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                interrupter.start()
                next(iterator)
            interrupter.join()
        gate.set()
        assert list(iterator) == [1, 2, 3]


def test_set_state_waits_for_a_read_that_is_under_way() -> None:
    reading, gate = threading.Event(), threading.Event()

    class Slow(Counter):
        inside = 0

        def __next__(self) -> int:
            assert not self.inside
            self.inside += 1
            if self.position["next"] == 2:
                reading.set()
                gate.wait(30)
            result = super().__next__()
            self.inside -= 1
            return result

    with ahead(Slow(9)) as iterator:
        assert next(iterator) == 0
        assert reading.wait(PATIENCE)
        threading.Timer(0.1, gate.set).start()
        iterator.set_state({"next": 6})
        assert gate.is_set()
        assert list(iterator) == [6, 7, 8]


def test_two_threads_may_take_turns() -> None:
    taken: list[int] = []
    with ahead(Counter(400)) as iterator:

        def take() -> None:
            taken.extend(iterator)

        takers = [threading.Thread(target=take) for _ in range(3)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(30)
        assert iterator.get_state() == {"next": 400}
    assert sorted(taken) == list(range(400))
