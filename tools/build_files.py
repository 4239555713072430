"""Writes the Bazel BUILD file of every folder from what its modules import.

`make build-files` runs this; a test holds that the files are up to date.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from tools.source_graph import PACKAGE, ROOT, imports, module_name, modules

__all__ = ["build_files"]

FOLDERS = (PACKAGE, "examples", "tests", "tools")

# Import name to distribution, where they differ by more than `_` and `-`.
DISTRIBUTIONS = {"absl": "absl_py", "orbax": "orbax_checkpoint", "sklearn": "scikit_learn"}

HEADER = """\
# Written by tools/build_files.py; `make build-files` brings it up to date.
# Third-party packages are expected in a pip hub named `pypi`.
load("@rules_python//python:defs.bzl", {rules})

package(default_visibility = ["//visibility:public"])
"""

ROOT_FILE = """\
# The targets are in the folders' own files, which tools/build_files.py writes.
package(default_visibility = ["//visibility:public"])

licenses(["notice"])

exports_files([
    "LICENSE",
    "pyproject.toml",
])

alias(
    name = "grain_jax",
    actual = "//grain_jax",
)
"""


def build_files() -> dict[Path, str]:
    """The text of each BUILD file by its path."""
    sources = {name: path for folder in FOLDERS for name, path in modules(folder).items()}
    by_folder = defaultdict(list)
    for name, path in sources.items():
        by_folder[path.parent].append(name)
    files = {ROOT / "BUILD": ROOT_FILE}
    for folder, names in by_folder.items():
        targets = [_target(sources[name], sources) for name in sorted(names)]
        rules = sorted({f'"{target.partition("(")[0]}"' for target in targets})
        text = HEADER.format(rules=", ".join(rules))
        if folder == ROOT / "tools":
            text += '\nexports_files(["run_pytest.py"])\n'
        files[folder / "BUILD"] = "\n".join([text, *targets])
    return files


def _target(path: Path, sources: dict[str, Path]) -> str:
    deps = _dependencies(path, sources)
    if not path.name.startswith("test_"):
        return _call("py_library", name=_target_name(path), srcs=[path.name], deps=deps)
    return _call(
        "py_test",
        name=path.stem,
        srcs=[path.name, "//tools:run_pytest.py"],
        args=[f"$(rootpath {path.name})"],
        main="//tools:run_pytest.py",
        deps=sorted({*deps, "//tests:conftest", "@pypi//pytest", "@pypi//pytest_timeout"}),
    )


def _target_name(path: Path) -> str:
    return path.parent.name if path.name == "__init__.py" else path.stem


def _dependencies(path: Path, sources: dict[str, Path]) -> list[str]:
    is_facade = path.parent in (ROOT / PACKAGE, ROOT / PACKAGE / "python")
    labels = set()
    for found in imports(path):
        if found.for_type_checkers and not is_facade:
            continue  # a facade fetches these names when they are used
        if label := _label(found.name, sources):
            labels.add(label)
    own = f"//{path.parent.relative_to(ROOT)}:{_target_name(path)}"
    return sorted(labels - {own})


def _label(module: str, sources: dict[str, Path]) -> str | None:
    top = module.partition(".")[0]
    if f"examples.{module}" in sources:  # scripts there see their own folder
        module = f"examples.{module}"
    if module in sources:
        return f"//{sources[module].parent.relative_to(ROOT)}:{_target_name(sources[module])}"
    if top in sys.stdlib_module_names or top in FOLDERS:
        return None
    return f"@pypi//{DISTRIBUTIONS.get(top, top)}"


def _call(rule: str, **arguments: str | list[str]) -> str:
    lines = [f"{rule}("]
    for key, value in arguments.items():
        if isinstance(value, str):
            lines.append(f'    {key} = "{value}",')
        elif len(value) == 1:
            lines.append(f'    {key} = ["{value[0]}"],')
        elif value:
            lines += [f"    {key} = [", *(f'        "{item}",' for item in value), "    ],"]
    return "\n".join([*lines, ")\n"])


if __name__ == "__main__":
    for path, text in build_files().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    for path in {*ROOT.glob("*/**/BUILD")} - build_files().keys():
        if module_name(path).partition(".")[0] in FOLDERS:
            path.unlink()
            print(f"removed {path.relative_to(ROOT)}")
