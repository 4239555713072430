"""Where the work is done: worker processes, or this one where the platform has none."""

from __future__ import annotations

from typing import Any

import pytest

import grain_jax as grain
from grain_jax import MapDataset
from grain_jax._execution import inline, workers
from grain_jax._execution.engine import launch
from tests.processes import children

pytestmark = pytest.mark.usefixtures("no_process_left")


def test_a_platform_without_processes_does_the_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "supported", lambda: False)
    before = children()
    dataset = MapDataset.range(9).filter(lambda x: x % 2).to_iter_dataset().batch(2)
    options = grain.MultiprocessingOptions(num_workers=2)
    with pytest.warns(UserWarning, match=r"num_workers=2: this platform.*stream is the same"):
        found = [b.tolist() for b in dataset.mp_prefetch(options)]
    assert found == [[1, 3], [5, 7]]
    assert children() == before
    keeper = workers.Keeper()
    keeper.keep()
    keeper.close()


@pytest.mark.skipif(not launch.supported(), reason="needs worker processes")
def test_what_is_kept_between_iterations_goes_with_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_shared", None)  # which the fixture keeps
    before = children()
    keeper = workers.Keeper()
    keeper.keep()
    keeper.keep()
    assert children() - before
    keeper.close()
    keeper.close()


@pytest.mark.skipif(not launch.supported(), reason="needs worker processes")
def test_settings_reach_the_workers() -> None:
    def init(number: int, count: int) -> None:
        import builtins

        builtins.worker_of_the_test = (number, count)  # type: ignore[attr-defined]

    def look(x: int) -> Any:
        import builtins

        return builtins.worker_of_the_test  # type: ignore[attr-defined]

    dataset = MapDataset.range(4).to_iter_dataset().map(look)
    options = grain.MultiprocessingOptions(num_workers=1)
    iterator = iter(dataset.mp_prefetch(options, worker_init_fn=init))
    assert list(iterator) == [(0, 1)] * 4
    iterator.close()


def test_this_process_does_a_task_when_it_is_asked_for() -> None:
    done: list[int] = []

    class Program:
        seeded = False

        def run(self, kind: int, payload: int, inputs: list[Any], *_: Any) -> Any:
            done.append(payload)
            return [payload, *inputs], "info"

        def close(self) -> None:
            done.append(-1)

    here = inline.Inline(Program())  # type: ignore[arg-type]
    first, second = here.submit(0, 10), here.submit(0, 20)
    assert here.result(first, block=False) is None
    assert done == []
    bundle = here.result(first)
    assert bundle is not None
    assert (len(bundle), bundle.info, bundle.load()) == (1, "info", [10])
    third = here.submit(0, 30, [(bundle, [0])])
    found = here.result(third)
    assert found is not None
    assert found.load() == [30, 10]
    here.cancel()
    with pytest.raises(KeyError):
        here.result(second)
    here.close()
    assert done == [10, 30, -1]
