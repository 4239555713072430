"""Modules that only a step imports: hooks that make their classes read what is set before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.test_real_holders import MODES, look

pytestmark = pytest.mark.timeout(240)

# Each function reads a class of `late`, which has been made by a hook of these.
HOOKS = """
    SCALE = PART = FIELD = 1
    class Registered:
        kinds = {}
        scale, is_open = 1, True
        def __init_subclass__(cls, **given):
            super().__init_subclass__(**given)
            if Registered.is_open:
                Registered.kinds[cls.__name__] = Registered.scale
    class Scaled:
        def __init_subclass__(cls, **given): cls.scale = SCALE
    class Between(Scaled): pass
    class Meta(type):
        def __new__(meta, name, bases, space):
            return super().__new__(meta, name, bases, space | {"part": PART})
    class Made(metaclass=Meta): pass
    class Field:
        def __set_name__(self, owner, name): owner.field = FIELD
    class Counted:
        def __init_subclass__(cls, **given): cls.number = len(Counted.__subclasses__())
    class Replaced:
        def __init_subclass__(cls, **given): cls.rate = 1
    def other(cls, **given): cls.rate = 7
    def registered(x):
        import late
        return x * Registered.kinds.get("Late", 3)
    def scaled(x):
        import late
        return x * late.Below.scale
    def made(x):
        import late
        return x * late.Typed.part
    def field(x):
        import late
        return x * late.Named.field
    def counted(x):
        import late
        return x * late.Numbered.number
    def replaced(x):
        import late
        return x * late.Rated.rate
    def later(x):
        import late
        return x * late.deeper()
    def inside(x):
        class Inner(Scaled): pass
        return x * Inner.scale
"""
LATE = """
    import mod
    class Late(mod.Registered): pass
    class Below(mod.Between): pass
    class Typed(mod.Made): pass
    class Named: a = mod.Field()
    class Numbered(mod.Counted): pass
    class Rated(mod.Replaced): pass
    def deeper():
        import latest
        return latest.Latest.scale
"""
LATEST = """
    import mod
    class Latest(mod.Scaled): pass
"""
CHANGES = {
    "registered": (
        "mod.Registered.is_open = False",
        [3, 6],
        "mod.Registered.is_open is False here, and True in a worker",
    ),
    "scaled": ("mod.SCALE = 7", [7, 14], "mod.SCALE is 7 here, and 1 in a worker"),
    "made": ("mod.PART = 7", [7, 14], "mod.PART is 7 here, and 1 in a worker"),
    "field": ("mod.FIELD = 7", [7, 14], "mod.FIELD is 7 here, and 1 in a worker"),
    "counted": (
        "class Own(mod.Counted): pass",
        [2, 4],
        "mod.Counted.__subclasses__() is {class __main__.Own} here, and set() in a worker",
    ),
    "replaced": (
        "mod.Replaced.__init_subclass__ = classmethod(mod.other)",
        [7, 14],
        "mod.Replaced.__init_subclass__ is function mod.other here, and "
        "function mod.Replaced.__init_subclass__ in a worker",
    ),
    "later": ("mod.SCALE = 7", [7, 14], "mod.SCALE is 7 here, and 1 in a worker"),
    "inside": ("mod.SCALE = 7", [7, 14], "mod.SCALE is 7 here, and 1 in a worker"),
}
FILES = {"mod": HOOKS, "late": LATE, "latest": LATEST}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("mode", MODES)
def test_what_hooks_of_classes_read(name: str, mode: str, tmp_path: Path) -> None:
    change, stream, error = CHANGES[name]
    assert look(tmp_path, name, change, "2 0", mode=mode, **FILES) == [
        f"{name} 2 {error}",
        f"{name} 0 {stream}",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_hooks_that_read_what_nobody_has_set(mode: str, tmp_path: Path) -> None:
    found = look(tmp_path, " ".join(CHANGES), "", "2 0 2", mode=mode, **FILES)
    assert found == [f"{name} {workers} [1, 2]" for name in CHANGES for workers in (2, 0, 2)]
