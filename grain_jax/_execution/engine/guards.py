"""What code makes only where it is absent: tables that it fills where they are empty, say.

`if not TABLE: ...`, `if "k" not in TABLE: ...`, `if not hasattr(config, "k"): ...`, a test for
None, and a handler of `KeyError` guard the code behind them. What is only assigned there is made
once, and stays; what is assigned elsewhere, too, may be another thing at each record.
"""

from __future__ import annotations

import dis
from typing import NamedTuple

__all__ = ["GLOBALS", "Guards", "is_entry"]

GLOBALS = ("globals", "()")
_SKIPPED = ("PRECALL", "PUSH_NULL", "NOT_TAKEN", "TO_BOOL")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
_EMPTY = ("BUILD_MAP", "BUILD_LIST", "BUILD_TUPLE")
_CONTAINERS = frozenset({"list", "dict", "set", "collections", "Counter", "OrderedDict", "deque"})
_LACKS = frozenset({"KeyError", "NameError", "AttributeError", "LookupError", "IndexError"})
_ENDS = ("RETURN", "RAISE", "RERAISE", "JUMP_BACKWARD")
_VALUE, _PRESENT, _ABSENT = "value", "present", "absent"

Chain = tuple[str, ...]


class _Test(NamedTuple):
    """What a value says of a place: it is what lies there, or whether something does."""

    place: Chain | None  # None: whatever is asked for and lacking
    kind: str
    is_truth: bool = False  # whether what is false counts as absent, though no truth is asked for


class _Jump(NamedTuple):
    offset: int
    target: int
    place: Chain | None
    falls_absent: bool  # whether the code that follows runs where the place has nothing
    is_truth: bool  # whether what is false counts as absent


class _Region(NamedTuple):
    begin: int
    end: int
    place: Chain | None


class Guards:
    """The guards in one function's code, as it is scanned from its beginning to its end."""

    def __init__(self) -> None:
        self._seen: list[tuple[dis.Instruction, Chain, _Test | None]] = []
        self._names: dict[str, _Test] = {}  # of local variables
        self._jumps: list[_Jump] = []
        self._stores: list[tuple[Chain, int, bool]] = []
        self._calls: list[tuple[Chain, int]] = []
        self._lines: list[dis.Instruction] = []

    def step(self, instruction: dis.Instruction, top: Chain) -> None:
        """Takes an instruction, and the chain of names that it leaves on top of the stack."""
        self._lines.append(instruction)
        kind, name = instruction.opname, instruction.argval
        if kind in _SKIPPED:
            return
        before = self._seen[-1][2] if self._seen else None
        if "JUMP" in kind and "_IF_" in kind and before is not None:
            self._jump(instruction, before)
        test = self._tested(instruction, top)
        if kind == "STORE_FAST":
            self._names.pop(name, None)
            if before is not None:
                self._names[name] = before
            if self._at(1).opname == "COPY":  # `(k := table.get("k")) is None`
                test = before
        if kind == "CALL" and (called := self._called(instruction.arg or 0)):
            self._calls.append((called, instruction.offset))
        self._seen.append((instruction, top, test))

    def store(self, place: Chain, offset: int, above: int = 0) -> None:
        """Takes a place that code assigns: a chain, of an entry with its label.

        Args:
          place: it.
          offset: that of the instruction.
          above: how many values lie above the one that it gets.
        """
        # An empty container is one that other code is going to fill.
        self._stores.append((place, -1 if self._is_empty(above) else offset, False))

    def grow(self, place: Chain, offset: int) -> None:
        """Takes a container that code adds to."""
        self._stores.append((place, offset, True))

    def resolve(self) -> tuple[set[Chain], set[Chain], set[Chain], set[tuple[Chain, Chain, bool]]]:
        """Returns places that are made where they are absent, and those that code assigns else.

        Returns:
          places with a guard; places without; those for which what is false counts as absent;
          places with the functions that are called where they are absent, and whether what is
          false counts.
        """
        regions = [one for jump in self._jumps if (one := self._region(jump)) is not None]
        # A flag that is set where it is not guards all that happens beside.
        once = [one for one in regions if one.place and self._sets(one)]
        made: set[Chain] = set()
        loose: set[Chain] = set()
        for place, offset, adds in self._stores:
            inside = [one for one in regions if one.begin < offset < one.end]
            if adds:  # what it lacks may be one entry of many
                inside = [one for one in inside if one.place is not None]
            is_made = any(
                _is_of(place, one.place) or (one in once and not _holds(place, one.place))
                for one in inside
            )
            (made if is_made else loose).add(place)
        truths = {jump.place for jump in self._jumps if jump.is_truth and jump.place}
        asked = {
            (one.place, called, one.place in truths)
            for called, offset in self._calls
            for one in regions
            if one.place and one.begin < offset < one.end
        }
        return made, loose, truths, asked

    def _sets(self, region: _Region) -> bool:
        key = _key(region.place or ())
        return any(
            _key(place) == key and region.begin < offset < region.end
            for place, offset, _ in self._stores
        )

    def _at(self, back: int) -> dis.Instruction:
        return self._seen[-back][0] if back <= len(self._seen) else self._seen[0][0]

    def _constant(self, back: int) -> object:
        one = self._at(back)
        return one.argval if one.opname in _CONSTANTS and back <= len(self._seen) else ...

    def _top(self, back: int) -> Chain:
        return self._seen[-back][1] if back <= len(self._seen) else ()

    def _first(self, back: int) -> int:
        """Returns how far back the chain begins that ends so far back."""
        while back < len(self._seen):
            one = self._at(back)
            if one.opname.startswith("BINARY_"):  # an element: the index lies above the container
                back += 2
            elif one.opname in _ATTRIBUTES or (one.opname == "CALL" and not one.arg):
                back += 1
            else:
                break
        return back

    def _is_empty(self, above: int) -> bool:
        """Whether the value below so many others is a new container without elements."""
        back = 1
        for _ in range(above):
            back = self._first(back) + 1
        if back > len(self._seen):
            return False
        made = self._at(back)
        if made.opname.startswith("BUILD_"):
            return not made.arg
        begun = self._at(self._first(back))
        return made.opname == "CALL" and not made.arg and begun.argval in _CONTAINERS

    def _called(self, count: int) -> Chain:
        """Returns a function of a global name that is called with arguments that are plain."""
        back = 1
        for _ in range(count):
            back = self._first(back) + 1
        one = self._at(back) if back <= len(self._seen) else None
        return self._top(back) if one is not None and one.opname.startswith("LOAD_") else ()

    def _calls_by_name(self, name: str, back: int) -> bool:
        """Whether a built-in of this name lies below the chain that ends so far back."""
        one = self._at(self._first(back) + 1)
        return one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval == name

    def _tested(self, instruction: dis.Instruction, top: Chain) -> _Test | None:
        """Returns what the value says that an instruction leaves on top of the stack."""
        kind, name = instruction.opname, instruction.argval
        before = self._seen[-1][2] if self._seen else None
        if kind.startswith("LOAD_FAST") and isinstance(name, str) and name in self._names:
            return self._names[name]
        if kind == "COPY":
            return before if instruction.arg == 1 else None
        if kind == "UNARY_NOT" and before is not None:
            return before._replace(kind=_PRESENT if before.kind == _ABSENT else _ABSENT)
        if kind == "CONTAINS_OP":
            return self._contained(bool(instruction.arg))
        if kind == "BINARY_SUBSCR" or (kind == "BINARY_OP" and instruction.argrepr == "[]"):
            return _value(_entry(self._top(2), self._constant(1)))
        if kind == "IS_OP" and self._constant(1) is False and len(self._seen) > 1:
            test = self._seen[-2][2]
            sense = _PRESENT if instruction.arg else _ABSENT
            return test and test._replace(kind=sense, is_truth=True)
        if kind == "COMPARE_OP":
            return self._compared(instruction)
        if kind == "CHECK_EXC_MATCH":
            names = {one.argval for one, *_ in self._seen[-3:] if one.opname == "LOAD_GLOBAL"}
            return None if names.isdisjoint(_LACKS) else _Test(None, _ABSENT)
        if kind == "CALL":
            return self._asked(instruction.arg or 0)
        return _value(top) if top[-1:] != ("()",) else None

    def _asked(self, count: int) -> _Test | None:
        """Returns what a call says: of `get`, `len`, `hasattr`, `getattr`."""
        if count in (1, 2) and self._top(count + 1)[-1:] == ("get",):
            is_none = count == 1 or self._constant(1) is None
            key = self._constant(count)
            return _value(_entry(self._top(count + 1)[:-1], key)) if is_none else None
        if count == 1 and self._top(1) and self._calls_by_name("len", 1):
            return _value(self._top(1))
        name = self._constant(count - 1) if count in (2, 3) else None
        owner = self._top(count)
        if not isinstance(name, str) or not owner:
            return None
        if count == 2 and self._calls_by_name("hasattr", 2):
            return _Test((*owner, name), _PRESENT)
        if count == 3 and self._constant(1) is None and self._calls_by_name("getattr", 3):
            return _value((*owner, name))
        return None

    def _contained(self, is_negated: bool) -> _Test | None:
        container, key = self._top(1), self._constant(self._first(1) + 1)
        place = _entry(container, key)
        if container == GLOBALS and isinstance(key, str):
            place = (key,)
        return _Test(place, _ABSENT if is_negated else _PRESENT) if place else None

    def _compared(self, instruction: dis.Instruction) -> _Test | None:
        """Returns what a comparison with nothing says of a value, or of its length."""
        last = self._at(1)
        is_zero = last.opname in _CONSTANTS and last.argval in (0, 1, "")
        if not (is_zero or (last.opname in _EMPTY and not last.arg)) or len(self._seen) < 2:
            return None
        test = self._seen[-2][2]
        if test is None or test.kind != _VALUE:
            return None
        is_equal = instruction.argrepr.strip("bol()") in ("==", "<", "<=")
        return test._replace(kind=_ABSENT if is_equal else _PRESENT)

    def _jump(self, instruction: dis.Instruction, test: _Test) -> None:
        is_none = "NONE" in instruction.opname
        if is_none and test.kind != _VALUE:
            return
        jumps_present = instruction.opname.endswith(("IF_NOT_NONE", "IF_TRUE", "IF_TRUE_OR_POP"))
        falls_absent = jumps_present == (test.kind != _ABSENT)
        is_truth = test.is_truth or (not is_none and test.kind == _VALUE)
        jump = _Jump(instruction.offset, instruction.argval, test.place, falls_absent, is_truth)
        self._jumps.append(jump)

    def _region(self, jump: _Jump) -> _Region | None:
        """Returns the code that runs only where the place of a test has nothing."""
        if jump.target <= jump.offset:
            return None
        if jump.falls_absent:
            return _Region(jump.offset, jump.target, jump.place)
        last = max((one for one in self._lines if one.offset < jump.target), key=_offset)
        if last.opname.startswith(_ENDS):
            return _Region(jump.target - 1, self._lines[-1].offset + 1, jump.place)
        if last.opname == "JUMP_FORWARD":
            return _Region(jump.target - 1, last.argval, jump.place)
        return None


def _offset(instruction: dis.Instruction) -> int:
    return instruction.offset


def _value(place: Chain) -> _Test | None:
    return _Test(place, _VALUE) if place and (len(place) > 1 or place[0][:1] != "<") else None


def _entry(container: Chain, key: object) -> Chain:
    return (*container, f"[{key!r}]") if container and isinstance(key, str | int) else ()


def is_entry(place: Chain) -> bool:
    """Whether a place ends with the label of an entry."""
    return len(place) > 1 and place[-1][:1] == "["


def _key(place: Chain) -> Chain:
    """Returns what is equal for places that may be the same: attributes count by their names."""
    if is_entry(place):
        return (*_key(place[:-1]), place[-1])
    return place if len(place) == 1 else place[-1:]


def _is_of(place: Chain, guarded: Chain | None) -> bool:
    """Whether a guard is about a place, or about the container that it lies in."""
    if guarded is None:
        return True
    key = _key(guarded)
    return _key(place)[: len(key)] == key


def _holds(container: Chain, guarded: Chain | None) -> bool:
    """Whether a guard is about an entry of a container: it may have others before."""
    return guarded is not None and is_entry(guarded) and _key(guarded[:-1]) == _key(container)
