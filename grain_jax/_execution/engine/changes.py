"""Which variables a function changes itself: counters, caches, what is made at the first use."""

from __future__ import annotations

import collections
import dataclasses
import dis
import functools
import types

from grain_jax._algebra.mentions import NO_EFFECT, nested, writes
from grain_jax._execution.engine.guards import GLOBALS, Guards, is_entry

__all__ = ["ANY", "CELL", "IMPORT", "LOCAL", "RESULT", "Changes", "asked", "changes"]

# What a chain may begin with instead of a global: a local variable, such as `self`; anything else;
# a module that the function imports, whose name follows, with dots before it if it is relative; a
# variable of an enclosing function, whose name follows.
LOCAL, ANY, IMPORT, CELL = "<local>", "<any>", "<import>", "<cell>"

# What a chain ends with that is what a function returns without arguments.
RESULT = "()"

_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_MUTATORS = frozenset(
    """
    add append appendleft clear discard extend insert move_to_end pop popitem popleft remove
    setdefault update __setitem__ fill sort reverse
    """.split()  # noqa: SIM905
)
_MOVERS = frozenset(
    "appendleft clear insert pop popitem popleft remove sort reverse discard".split()  # noqa: SIM905
)
_TESTS = ("CONTAINS_OP", "IS_OP", "TO_BOOL", "UNARY_NOT", "POP_TOP", "STORE_FAST")
_ENDS = ("POP_TOP", "RETURN_VALUE", "NOP")  # with jumps and stores: of statements


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What the code of a function changes; chains are a global, say, and attributes.

    Attributes:
      kept: chains that it both reads and assigns.
      assigned: chains that it assigns.
      grown: chains of containers that it changes in place.
      entries: chains of containers, each with an entry of its own that code assigns otherwise than
        where it is absent: the label it has in messages, or "" where code counts with `+=` under
        names that are not known.
      cells: variables of enclosing functions that it assigns or changes in place.
      made: chains that it compares to None, as what is made at its first use.
      used: those of `grown` whose elements it reads; whether there is one is not reading it.
      moved: those of `grown` whose elements do not keep their places.
      counted: those of `grown` whose length it takes.
      once: chains that it assigns or adds to where they are absent, or empty.
      once_entries: those of containers, with the labels.
      loose: chains that it assigns or adds to elsewhere.
      deep: chains of containers that it changes otherwise than by entries of their own: those may
        be changes of what is in an entry.
      truths: chains for which what is false counts as absent.
    """

    kept: frozenset[tuple[str, ...]] = frozenset()
    assigned: frozenset[tuple[str, ...]] = frozenset()
    grown: frozenset[tuple[str, ...]] = frozenset()
    cells: frozenset[str] = frozenset()
    entries: frozenset[tuple[tuple[str, ...], str]] = frozenset()
    made: frozenset[tuple[str, ...]] = frozenset()
    used: frozenset[tuple[str, ...]] = frozenset()
    moved: frozenset[tuple[str, ...]] = frozenset()
    counted: frozenset[tuple[str, ...]] = frozenset()
    once: frozenset[tuple[str, ...]] = frozenset()
    once_entries: frozenset[tuple[tuple[str, ...], str]] = frozenset()
    loose: frozenset[tuple[str, ...]] = frozenset()
    deep: frozenset[tuple[str, ...]] = frozenset()
    truths: frozenset[tuple[str, ...]] = frozenset()


@functools.lru_cache(maxsize=4096)
def changes(code: types.CodeType) -> Changes:
    """Returns what a function's code changes, with that of functions inside it."""
    codes = list(nested(code))
    if not any(_may_write(one) for one in codes):
        return Changes()
    read: set[tuple[str, ...]] = set()
    assigned: set[tuple[str, ...]] = set()
    grown: set[tuple[str, ...]] = set()
    cells: set[str] = set()
    entries: set[tuple[tuple[str, ...], str]] = set()
    made: set[tuple[str, ...]] = set()
    used: set[tuple[str, ...]] = set()
    moved: set[tuple[str, ...]] = set()
    counted: set[tuple[str, ...]] = set()
    once: set[tuple[str, ...]] = set()
    loose: set[tuple[str, ...]] = set()
    deep: set[tuple[str, ...]] = set()
    truths: set[tuple[str, ...]] = set()
    for one in codes:
        scan = _Scan(one)
        deep |= scan.deep
        guarded = scan.guards.resolve()
        once |= guarded[0]
        loose |= guarded[1]
        truths |= guarded[2]
        read |= scan.read
        assigned |= scan.assigned
        grown |= scan.grown
        cells |= scan.cells
        entries |= scan.entries
        made |= scan.made
        used |= {chain for chain, count in scan.uses.items() if count > 0}
        moved |= scan.moved
        counted |= scan.counted
    names = {chain[-1] for chain in assigned if chain[0] == ANY}
    kept = {chain for chain in read if chain in assigned or (chain[-1] in names and chain[1:])}
    texts = {text for one in codes for text in one.co_consts if isinstance(text, str)}
    kept |= {chain for chain in assigned if chain[1:] and chain[-1] in texts}  # read by `getattr`
    cells |= {chain[1] for chain in grown if chain[0] == CELL and len(chain) == 2}
    entries |= {(chain[:-1], chain[-1]) for chain in loose if is_entry(chain)}
    return Changes(
        kept=frozenset(kept),
        assigned=frozenset(assigned),
        grown=frozenset(grown),
        cells=frozenset(cells),
        entries=frozenset(entries),
        made=frozenset(made),
        used=frozenset(used),
        moved=frozenset(moved),
        counted=frozenset(counted),
        once=frozenset(chain for chain in once if not is_entry(chain)),
        once_entries=frozenset((chain[:-1], chain[-1]) for chain in once if is_entry(chain)),
        loose=frozenset(chain for chain in loose if not is_entry(chain)),
        deep=frozenset(deep),
        truths=frozenset(truths),
    )


@functools.lru_cache(maxsize=4096)
def asked(code: types.CodeType) -> frozenset[tuple[tuple[str, ...], tuple[str, ...], bool]]:
    """Returns chains, each with a function that a function calls where they are absent.

    And whether what is false counts as absent.
    """
    return frozenset().union(*(_Scan(one).guards.resolve()[3] for one in nested(code)))


def _may_write(code: types.CodeType) -> bool:
    return writes(code) or not _MUTATORS.isdisjoint(code.co_names)


class _Scan:
    """One pass over the instructions of a function, which follows what lies on top of the stack."""

    def __init__(self, code: types.CodeType) -> None:
        self.read: set[tuple[str, ...]] = set()
        self.assigned: set[tuple[str, ...]] = set()
        self.grown: set[tuple[str, ...]] = set()
        self.cells: set[str] = set()
        self.entries: set[tuple[tuple[str, ...], str]] = set()
        self.made: set[tuple[str, ...]] = set()
        # How often each chain is loaded, less those that read no element.
        self.uses: collections.Counter[tuple[str, ...]] = collections.Counter()
        self.moved: set[tuple[str, ...]] = set()
        self.counted: set[tuple[str, ...]] = set()
        self.deep: set[tuple[str, ...]] = set()
        self.guards = Guards()
        self._default: tuple[str, ...] = ()  # whose `setdefault` is called
        self._aliases: dict[str, tuple[str, ...]] = {}
        self._module: tuple[str, ...] = ()  # that is imported from
        self._tops: list[tuple[str, ...]] = []  # after each instruction; () where it is unknown
        self._done: list[dis.Instruction] = []
        for instruction in dis.get_instructions(code):
            if instruction.opname in NO_EFFECT:
                continue
            before = self._tops[-1] if self._tops else ()
            top = self._step(instruction, before, code)
            self.guards.step(instruction, top)
            self._count(instruction, before, top)
            self._done.append(instruction)
            self._tops.append(top)

    def _count(
        self, instruction: dis.Instruction, before: tuple[str, ...], top: tuple[str, ...]
    ) -> None:
        """Counts what is loaded, and what does with it something else than to read elements."""
        kind, name = instruction.opname, instruction.argval
        if top and kind not in ("COPY", "PRECALL", "PUSH_NULL", "SWAP"):
            self.uses[top] += 1
        if kind in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"):
            self.uses[self._local(name[0])] += 1
        if not before:
            return
        if kind in _ATTRIBUTES:
            is_read = name == "setdefault" or name not in _MUTATORS
            self.uses[before] -= not is_read
            if name in _MOVERS:
                self.moved.add(before)
            self._default = before if name == "setdefault" else self._default
        elif kind in _TESTS or kind.startswith("POP_JUMP") or "STORE_FAST" in kind:
            self.uses[before] -= 1
        elif kind == "CALL" and instruction.arg == 1 and self._is_length(before):
            self.uses[before] -= 1
            self.counted.add(before)

    def _is_length(self, chain: tuple[str, ...]) -> bool:
        recent = self._done[-len(chain) - 3 :]
        return any(one.opname in _GLOBALS and one.argval == "len" for one in recent)

    def _step(
        self, instruction: dis.Instruction, top: tuple[str, ...], code: types.CodeType
    ) -> tuple[str, ...]:
        kind, name = instruction.opname, instruction.argval
        if kind in _GLOBALS:
            self.read.add((name,))
            return (name,)
        if kind in _ATTRIBUTES:
            if name in _MUTATORS and top:
                self.grown.add(top)
                self.guards.grow(top, instruction.offset)
                self.deep.add(top)
            chain = (*self._owner(top), name)
            self.read.add(chain)
            return chain
        if kind == "STORE_FAST_LOAD_FAST":
            self._store(name[0], top)
            return self._local(name[1])
        if kind == "LOAD_DEREF" and name in code.co_freevars and name not in self._aliases:
            return (CELL, name)
        if kind.startswith(("LOAD_FAST", "LOAD_DEREF")):
            return self._local(name[-1] if isinstance(name, tuple) else name)
        if kind == "COPY" and instruction.arg == 1:
            return top
        if kind in ("PRECALL", "PUSH_NULL"):
            return top
        if kind == "CALL" and instruction.arg == 2 and self._default and self._is_new():
            return self._element(self._default)  # of `setdefault(key, [])`
        if kind == "CALL" and not instruction.arg and top[-1:] not in ((), (LOCAL,), (RESULT,)):
            return (*top, RESULT)
        if kind.endswith(("IF_NONE", "IF_NOT_NONE")):
            self.made.add(top)
        if kind == "IMPORT_NAME":
            level, taken = (one.argval for one in self._done[-2:])
            self._module = (IMPORT, "." * level + (name if taken else name.partition(".")[0]))
            return self._module
        if kind == "IMPORT_FROM":
            return (*self._module, name)
        if kind == "BINARY_SUBSCR" or (kind == "BINARY_OP" and instruction.argrepr == "[]"):
            # What changes an element changes the container.
            return self._element(self._container(1))
        if kind == "STORE_FAST":
            self._store(name, top)
        elif kind in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self.assigned.add((name,))
            self.guards.store((name,), instruction.offset)
        elif kind in ("STORE_ATTR", "DELETE_ATTR"):
            chain = (*self._owner(top), name)
            self.assigned.add(chain)
            self.guards.store(chain, instruction.offset, above=1)
        elif kind == "STORE_DEREF":
            if name in code.co_freevars:
                self.cells.add(name)
        elif kind in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
            container = self._container(2 if kind == "STORE_SLICE" else 1)
            if container:
                self.uses[container] -= 1
                if kind != "STORE_SUBSCR":
                    self.moved.add(container)
                self._assign_entry(container, instruction.offset)
        return ()

    def _element(self, container: tuple[str, ...]) -> tuple[str, ...]:
        """Takes an element: by itself, that reads nothing."""
        self.uses[container] -= 1
        return container

    def _is_new(self) -> bool:
        """Whether an empty list, set or dict has been made, or an object without arguments."""
        made = [one for one in self._done[-2:] if one.opname != "PRECALL"][-1]
        return made.opname.startswith(("BUILD_", "CALL")) and not made.arg

    def _assign_entry(self, container: tuple[str, ...], offset: int) -> None:
        last, is_counted = self._done[-1], False
        if last.opname == "SWAP":  # as by `x[k] += 1`: the key lies below two copies
            copies = [at for at, one in enumerate(self._done) if one.opname == "COPY"]
            is_counted = bool(copies)
            last = self._done[max(copies[-1] - 2, 0)] if copies else last
            self.uses[container] -= is_counted
        is_counted = is_counted or self._is_sum(container)
        key = last.argval if last.opname in ("LOAD_CONST", "LOAD_SMALL_INT") else None
        if container[-1] == "__dict__" and isinstance(key, str):
            self.assigned.add((*container[:-1], key))
            self.read.add((*container[:-1], key))
            self.guards.store((*container[:-1], key), offset, above=2)
            return
        if container == GLOBALS and isinstance(key, str):
            self.assigned.add((key,))
            self.guards.store((key,), offset, above=2)
            return
        self.grown.add(container)
        self.guards.grow(container, offset)
        if isinstance(key, str | int):
            self.guards.store((*container, f"[{key!r}]"), offset, above=2)
            return
        self.deep.add(container)
        if is_counted:
            self.entries.add((container, ""))

    def _is_sum(self, container: tuple[str, ...]) -> bool:
        """Whether what is assigned is computed of the entry that is there."""
        begin = len(self._done)
        while begin and not _ends(self._done[begin - 1].opname):
            begin -= 1
        steps = list(zip(self._done[begin:], self._tops[begin:], strict=True))
        reads = [top for one, top in steps if one.opname in _ATTRIBUTES and one.argval == "get"]
        operations = [one for one, _ in steps if one.opname == "BINARY_OP" and one.argrepr != "[]"]
        calls = [one for one, _ in steps if one.opname in _GLOBALS]
        if (*container, "get") not in reads or any(one.argval == "len" for one in calls):
            return False
        first = next(iter(top for _, top in steps if top), ())
        return bool(operations) or first != container[: len(first)]

    def _container(self, above: int) -> tuple[str, ...]:
        """Returns what lies below so many values on top of the stack."""
        end = len(self._done)
        for at in range(end - 1, 0, -1):
            # A place that is read and written, as by `x[k] += 1`: both lie there twice.
            both = self._done[at - 1 : at + 1]
            if all(one.opname == "COPY" and one.arg == 2 for one in both):
                end = at - 1
                break
            if self._done[at].opname in ("STORE_SUBSCR", "STORE_FAST"):
                break
        depth = 0
        for at in range(end - 1, 0, -1):
            one = self._done[at]
            below, depth = above - depth, depth + dis.stack_effect(one.opcode, one.arg, jump=False)
            if depth == above:
                return self._tops[at - 1]
            if depth > above:  # an instruction that loads two values
                names = one.argval if isinstance(one.argval, tuple) else ()
                return self._local(names[-1 - below]) if below < len(names) else ()
        return ()

    def _owner(self, top: tuple[str, ...]) -> tuple[str, ...]:
        """Returns what a chain begins with, or goes on from, of which an attribute is named."""
        if top[-1:] != (RESULT,):
            return top or (ANY,)
        return (ANY,) if self._done[-1].opname in ("CALL", "COPY") else (LOCAL,)

    def _store(self, name: str, top: tuple[str, ...]) -> None:
        """A local variable is another name of what it was assigned from, as long as that is so."""
        self._aliases.pop(name, None)
        if top and top != (LOCAL,):
            self._aliases[name] = top

    def _local(self, name: str) -> tuple[str, ...]:
        return self._aliases.get(name, (LOCAL,))


def _ends(kind: str) -> bool:
    return kind in _ENDS or kind.startswith(("STORE", "DELETE")) or "JUMP" in kind
