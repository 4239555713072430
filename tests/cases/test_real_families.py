"""Classes of a script that know each other: registries, subclasses, metaclasses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

SCRIPT = """
import abc
import plugins
import grain_jax as grain

class Augment:
    registry = []
    def __init_subclass__(cls, **more):
        super().__init_subclass__(**more)
        Augment.registry.append(cls.__name__)
    def __call__(self, x): return x
class Shift(Augment):
    def __call__(self, x): return x + 10
class Double(Augment):
    def __call__(self, x): return x * 2
class Keyed(Augment):
    def __init_subclass__(cls, *, needed, **more):
        super().__init_subclass__(**more)
        cls.needed = needed
class Sub(Keyed, needed=4):
    def __call__(self, x): return -x

class Meta(abc.ABCMeta):
    made = []
    def __new__(meta, name, bases, space):
        return super().__new__(meta, name, bases, {**space, "tag": name.lower()})
    def __init__(cls, *given):
        super().__init__(*given)
        Meta.made.append(cls.__name__)
class First(metaclass=Meta):
    @abc.abstractmethod
    def f(self): ...
class Second(First):
    def f(self): return 3

class Plugin(plugins.Base):
    def __call__(self, x): return x + 1

def everything(x):
    for kind in Augment.__subclasses__(): x = kind()(x)
    return x
def the_other_first(x):
    assert Double and Sub
    return everything(x), [kind.__name__ for kind in Keyed.__subclasses__()]
def registry(x): return Shift.registry
def by_instance(x): return Double().registry
def keyed(x): return Sub.needed, Sub.registry
def meta(x):
    try: First()
    except TypeError: return Second.tag, Meta.made, Second().f(), isinstance(Second(), First)
def of_a_module(x): return [kind.__name__ for kind in plugins.registry], Plugin()(x)

def stream(step, workers):
    options = grain.MultiprocessingOptions(num_workers=workers)
    return list(grain.MapDataset.range(1, 3).map(step).to_iter_dataset().mp_prefetch(options))

NAMES = ["Shift", "Double", "Keyed", "Sub"]
for step, expected in (
    (everything, [22, 24]),
    (the_other_first, [(22, ["Sub"]), (24, ["Sub"])]),
    (registry, [NAMES] * 2),
    (by_instance, [NAMES] * 2),
    (keyed, [(4, NAMES)] * 2),
    (meta, [("second", ["First", "Second"], 3, True)] * 2),
    (of_a_module, [(["Plugin"], 2), (["Plugin"], 3)]),
):
    for workers in (0, 2):
        got = stream(step, workers)
        assert got == expected, (step.__name__, workers, got)
print("done")
"""


@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
def test_they_are_in_a_worker_what_they_are_here(tmp_path: Path, mode: str) -> None:
    (tmp_path / "plugins.py").write_text(
        "registry = []\nclass Base:\n    def __init_subclass__(cls): registry.append(cls)\n"
    )
    assert scripts.output(tmp_path, SCRIPT, 100, GRAIN_JAX_ENGINE_MODE=mode) == ["done"]
