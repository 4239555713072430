"""What the script has put into tables that code fills: workers have it, too, or it is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.test_real_holders import MODES, look

pytestmark = pytest.mark.timeout(240)

FILLED = """
    import types
    TABLE, SETTINGS, config, _scale = {}, {}, types.SimpleNamespace(), None
    def table(x):
        if not TABLE:
            TABLE.update({1: 10, 2: 20})
        return TABLE.get(x, -1)
    def entry(x):
        if "scale" not in SETTINGS:
            SETTINGS["scale"] = 5
        return x * SETTINGS["scale"]
    def attribute(x):
        if not hasattr(config, "scale"):
            config.scale = 5
        return x * config.scale
    def variable(x):
        global _scale
        if _scale is None:
            _scale = 5
        return x * _scale
"""
CHANGE = "mod.TABLE[9] = 1; mod.SETTINGS['scale'] = mod.config.scale = mod._scale = 7"


@pytest.mark.parametrize("mode", MODES)
def test_what_the_script_has_filled_before(mode: str, tmp_path: Path) -> None:
    found = look(tmp_path, "table entry attribute variable", CHANGE, mode=mode, mod=FILLED)
    assert found == [
        "table 0 [-1, -1]",
        "table 2 mod.TABLE[9] is 1 here, and missing in a worker",
        "entry 0 [7, 14]",
        "entry 2 mod.SETTINGS['scale'] is 7 here, and 5 in a worker",
        "attribute 0 [7, 14]",
        "attribute 2 mod.config.scale is 7 here, and 5 in a worker",
        "variable 0 [7, 14]",
        "variable 2 mod._scale is 7 here, and 5 in a worker",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_what_code_fills_in_the_trainer_first(mode: str, tmp_path: Path) -> None:
    found = look(tmp_path, "table entry attribute variable", "", "0 2 0", mode=mode, mod=FILLED)
    rows = [("table", [10, 20]), *((name, [5, 10]) for name in ("entry", "attribute", "variable"))]
    assert found == [f"{name} {workers} {row}" for name, row in rows for workers in (0, 2, 0)]
