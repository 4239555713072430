"""Every module and every test has a Bazel target, and targets depend on what they import."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools.build_files import build_files
from tools.source_graph import ROOT

FOLDERS = ["grain_jax", "tests", "examples", "tools"]
BUILD_FILES = [ROOT / "BUILD", *(path for name in FOLDERS for path in (ROOT / name).rglob("BUILD"))]


def targets(build: Path) -> list[tuple[str, dict[str, object]]]:
    """The rules of a BUILD file, whose syntax is a part of Python's: (rule, arguments)."""
    calls = [node.value for node in ast.parse(build.read_text()).body if isinstance(node, ast.Expr)]
    found = []
    for call in calls:
        if isinstance(call, ast.Call) and any(word.arg == "name" for word in call.keywords):
            arguments = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            found.append((ast.unparse(call.func), arguments))
    return found


def labels() -> set[str]:
    return {
        f"//{build.parent.relative_to(ROOT)}:{arguments['name']}"
        for build in BUILD_FILES
        for _, arguments in targets(build)
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_the_source_of_one_target(folder: str) -> None:
    rules: Counter[tuple[str, Path]] = Counter()
    for build in (ROOT / folder).rglob("BUILD"):
        for rule, arguments in targets(build):
            own = [source for source in arguments["srcs"] if not source.startswith("//")]  # type: ignore[attr-defined]
            rules.update((rule, build.parent / source) for source in own)
    expected = {
        ("py_test" if path.name.startswith("test_") else "py_library", path)
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(rules) == expected, "run `make build-files`"
    assert set(rules.values()) == {1}


def test_every_dependency_in_the_repository_exists() -> None:
    known = labels()
    for build in BUILD_FILES:
        for _, arguments in targets(build):
            for label in arguments.get("deps", []):  # type: ignore[attr-defined]
                assert label.startswith("@pypi//") or label in known, (build, label)


def test_the_files_say_what_the_sources_import() -> None:
    written = {path: path.read_text() for path in BUILD_FILES}
    assert written == build_files(), "run `make build-files`"
