"""Two modules of one name: a worker has one of them, so code that has the other is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]

EXPERIMENTS = """
import os, sys
import grain_jax as grain

def experiment(scale):
    folder = os.path.join(os.getcwd(), f"experiment{scale}")
    os.makedirs(folder)
    with open(folder + "/config.py", "w") as file:
        file.write(f"SCALE = {scale}\\n"
                   f"class C:\\n    k = {scale}\\n"
                   f"    @staticmethod\\n    def f(x): return x * {scale}\\n")
    with open(folder + f"/steps{scale}.py", "w") as file:
        file.write("import config\\ndef step(x): return x * config.C.k\\n")
    sys.path.insert(0, folder)
    sys.modules.pop("config", None)
    import config
    return config, __import__(f"steps{scale}").step

old, old_step = experiment(2)
new, new_step = experiment(7)
OldC = old.C

class Held:
    def __init__(self, module): self.module = module
    def __call__(self, x): return x * self.module.C.k

def closed(module): return lambda x: x * module.C.k

def tried(step, workers):
    options = grain.MultiprocessingOptions(num_workers=workers)
    dataset = grain.MapDataset.range(1, 4).map(step).to_iter_dataset()
    try:
        return list(dataset.mp_prefetch(options))
    except ValueError as error:
        return str(error)
"""

REFUSED = """
for step in (
    lambda x: (x * old.C.k, x * new.C.k),
    lambda x: old.C.f(x),
    lambda x: x * old.SCALE,
    Held(old), closed(old), old_step,
):
    text = tried(step, 2)
    for part in ("'config'", "experiment2/config.py", "experiment7/config.py", "names",
                 "spec_from_file_location"):
        assert part in text, (text, part)
    print(tried(step, 0))
"""

ACCEPTED = """
for step in (
    lambda x: x * new.C.k, Held(new), closed(new), new_step, new.C.f,
    lambda x: OldC.f(x) + OldC().k, old.C.f,
):
    print(tried(step, 0), tried(step, 2))
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_module_that_its_name_does_not_lead_to_is_refused(tmp_path: Path, mode: str) -> None:
    lines = scripts.output(tmp_path, EXPERIMENTS + REFUSED, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == ["[(2, 7), (4, 14), (6, 21)]", *["[2, 4, 6]"] * 5]


@pytest.mark.parametrize("mode", MODES)
def test_what_workers_have_by_that_name_is_used_and_classes_are_sent(
    tmp_path: Path, mode: str
) -> None:
    lines = scripts.output(tmp_path, EXPERIMENTS + ACCEPTED, GRAIN_JAX_ENGINE_MODE=mode)
    sevens, twos = "[7, 14, 21]", "[2, 4, 6]"
    assert lines == [*[f"{sevens} {sevens}"] * 5, "[4, 6, 8] [4, 6, 8]", f"{twos} {twos}"]
