"""The names in the code of a function: globals, attributes, imports, and texts that may be some."""

from __future__ import annotations

import dataclasses
import dis
import functools
import re
import string
import types
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = [
    "EVALUATING",
    "NO_EFFECT",
    "Mentions",
    "absolute",
    "makes_classes",
    "mentions",
    "names_in_text",
    "nested",
    "writes",
]

EVALUATING = frozenset({"eval", "exec"})
"""Built-ins that run texts as code."""

NO_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME"})
"""Instructions that change nothing on the stack."""

_WRITERS = frozenset(
    """
    STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR STORE_SUBSCR DELETE_SUBSCR STORE_SLICE
    STORE_DEREF
    """.split()  # noqa: SIM905
)
_BUILD_CLASS = dis.opmap["LOAD_BUILD_CLASS"]
_STORING = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"})
_WRITING = frozenset(dis.opmap[name] for name in _WRITERS if name in dis.opmap)

_IN_FIELD = re.compile(r"[.\[]([A-Za-z_]\w*)")
_LOOKING = frozenset(
    """
    getattr hasattr vars globals locals attrgetter import_module __import__ modules __dict__
    __getattribute__
    """.split()  # noqa: SIM905
)


@dataclasses.dataclass(frozen=True, slots=True)
class Mentions:
    """The names in the code of one function, that of functions inside it too.

    Attributes:
      chains: globals, each with the attributes that are taken of it at once.
      imports: modules that the code imports, and names from them; a relative one begins with dots.
      names: attributes, and texts that may be some.
      texts: of code that looks names up as it runs, names of modules and attributes in its
        constants; of other code, none.
      expressions: of code that runs texts as code, all texts in its constants.
      calls: built-ins that look names up as the code runs: `getattr`, `globals`, and their like.
      read: the names, but for those that the code only assigns, and those that only chains have.
    """

    chains: tuple[tuple[str, ...], ...]
    imports: tuple[tuple[str, ...], ...]
    names: frozenset[str]
    texts: frozenset[str] = frozenset()
    expressions: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    @property
    def is_dynamic(self) -> bool:
        """Whether the code looks names up as it runs."""
        return bool(self.calls)


@functools.lru_cache(maxsize=4096)
def mentions(code: types.CodeType) -> Mentions:
    """Returns the names in the code of a function, that of functions inside it too."""
    chains: list[tuple[str, ...]] = []
    imports: list[tuple[str, ...]] = []
    names = {text for text in code.co_consts if isinstance(text, str) and text.isidentifier()}
    stored: set[str] = set()  # and those in chains
    chain: list[str] = []
    imported, recent = "", (None, None, None)
    for instruction in dis.get_instructions(code):
        kind, name = instruction.opname, instruction.argval
        if kind in ("EXTENDED_ARG", "CACHE"):
            continue
        recent = (*recent[1:], name)
        if kind in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain.append(name)
            stored.add(name)
            continue
        if chain:
            chains.append(tuple(chain))
            chain = []
        if kind in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            chain = [name]
        elif kind == "IMPORT_NAME":
            # Two constants before it: how many packages up, and what is taken of the module.
            imported = "." * (recent[0] or 0) + name
            imports.append((imported,))
        elif kind == "IMPORT_FROM":
            imports.append((imported, name))
        elif kind == "STORE_NAME" and code.co_name == "<module>":
            pass  # what a module defines
        elif instruction.opcode in dis.hasname and isinstance(name, str):
            (stored if kind in _STORING else names).add(name)
    if chain:
        chains.append(tuple(chain))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = mentions(constant)
            chains += inner.chains
            imports += inner.imports
            names |= inner.read
            stored |= inner.names
    used = names.union(stored, *chains)
    runs = EVALUATING.intersection(chain[0] for chain in chains)
    calls = frozenset(used & _LOOKING) | runs
    expressions = frozenset(_constants(code)) if runs else frozenset()
    texts = _texts(code) if calls else frozenset()
    names |= {text for text in texts if text.isidentifier()}
    if "format" in used or "format_map" in used:
        fields = (
            field for text in code.co_consts if isinstance(text, str) for field in _fields(text)
        )
        names |= {name for field in fields for name in _IN_FIELD.findall(field)}
    read = frozenset(names)
    known = tuple(chains), tuple(imports), read | stored, texts, expressions, calls, read
    return Mentions(*known)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function, and that of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def writes(code: types.CodeType) -> bool:
    """Whether code, itself, assigns anything but its own local variables."""
    return not _WRITING.isdisjoint(code.co_code[::2])


@functools.lru_cache(maxsize=4096)
def makes_classes(code: types.CodeType) -> bool:
    """Whether the code of a function makes classes as it runs."""
    return any(_BUILD_CLASS in one.co_code[::2] for one in nested(code))


def _fields(text: str) -> list[str]:
    """Returns the fields of a text for `str.format`, such as `0.scale`."""
    try:
        return [field for _, field, _, _ in string.Formatter().parse(text) if field]
    except ValueError:
        return []


def _constants(code: types.CodeType) -> Iterator[str]:
    return (text for one in nested(code) for text in one.co_consts if isinstance(text, str))


@functools.lru_cache(maxsize=1024)
def names_in_text(text: str) -> frozenset[str]:
    """Returns the names in a text that is run as code; none where it is no code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(text, "<text>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return frozenset()
    return frozenset(name for one in nested(code) for name in one.co_names)


def _texts(value: Any) -> frozenset[str]:
    """Returns the dotted names among constants."""
    if isinstance(value, str):
        parts = value.lstrip(".").split(".")
        return frozenset([value] if all(part.isidentifier() for part in parts) else ())
    if isinstance(value, types.CodeType):
        value = value.co_consts
    inner = value if isinstance(value, (tuple, frozenset)) else ()
    return frozenset().union(*map(_texts, inner))


def absolute(name: str, package: str) -> str:
    """Returns the name of a module that is imported from inside a package."""
    bare = name.lstrip(".")
    level = len(name) - len(bare)
    if not level:
        return name
    base = package.rsplit(".", level - 1)[0] if level > 1 else package
    return f"{base}.{bare}".strip(".")
