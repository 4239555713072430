"""Descriptions of values and code, to compare those of two processes: plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "ONCE",
    "TRUTH",
    "WIDTH",
    "Description",
    "cut",
    "difference",
    "difference_of_made",
    "fixed",
    "growing",
    "is_unmade",
    "lacks",
    "leaving",
    "without",
    "without_own",
]

ONCE, TRUTH = "once", "truth"

WIDTH = 80
_MISSING = "missing"
_EMPTY = "bytearray(b'')"
_FALSE = frozenset({"False", "0", "0.0", "0j", "''", "b''"})


class Description(NamedTuple):
    """What is compared of a value.

    Attributes:
      kind: "value", "list", "mapping", "set", "object", "code", "large", "ring" for what is inside
        of itself, or "opaque".
      type: the value's class.
      text: of a single value, itself, for messages.
      digest: of a single value and of code, what has to be equal.
      origin: of code, and of an object, the module that defines it or its class.
      parts: what it is made of, each with what messages call it: "[0]", ".scale".
      grows: whether it is an attribute that code adds to: of mappings what both have is compared.
      made: `ONCE` for what code makes where it is None or empty, and `TRUTH` for what it makes
        where it is false: compared where both have it.
    """

    kind: str
    type: str
    text: str = ""
    digest: str = ""
    origin: str = ""
    parts: tuple[tuple[str, Description], ...] = ()
    grows: bool = False
    made: str = ""

    def __str__(self) -> str:
        if self.kind in ("mapping", "object", "list", "set"):
            return cut(_text_of_parts(self))
        return self.text or f"an object of type {self.type}"


def _text_of_parts(described: Description) -> str:
    kind, texts = described.kind, []
    room = WIDTH
    shown = [one for one in described.parts if kind == "object" or one[0][:1] != "."]
    for label, part in shown:
        if room < 0:
            break
        text = str(part)
        if kind == "mapping":
            text = f"{label[1:-1]}: {text}"
        elif kind == "object":
            text = f"{label[1:]}={text}"
        texts.append(text)
        room -= len(text)
    inner = ", ".join(texts) + ", …" * (len(texts) < len(shown))
    name = described.type.rpartition(".")[2]
    if kind == "object":
        return f"{name}({inner})"
    if described.type == "tuple":
        return f"({inner}{',' * (len(texts) == 1)})"
    bracketed = f"[{inner}]" if kind == "list" else f"{{{inner}}}"
    plain = described.type in ("list", "dict") or (described.type == "set" and inner)
    return bracketed if plain else f"{name}({bracketed if inner else ''})"


def cut(text: str) -> str:
    """Returns a text that is not too long for a message."""
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def difference(
    here: Description, there: Description, grows: bool = False
) -> tuple[str, str, str] | None:
    """Returns where two values first differ, and both there; None if they do not.

    Args:
      here: the value of the trainer.
      there: the value of a worker.
      grows: whether code adds to the value, so that only what both have is compared.
    """
    if here.made and (is_unmade(here, here.made) or is_unmade(there, here.made)):
        return None
    if here.grows:
        if here.kind != "mapping" or here.type != there.type:
            return None
        grows = True
    if "opaque" in (here.kind, there.kind):
        # Of what is not compared, one thing counts as equal to another, but not to None, say.
        is_like = here.kind == there.kind or here.type == there.type
        return None if is_like else _told(here, there)
    if (here.kind, here.type) != (there.kind, there.type):
        return _told(here, there)
    if here.kind == "code":
        if here.text != there.text:
            return "", here.text, there.text
        if bool(here.digest) != bool(there.digest):  # rewritten by an import hook, in one of them
            return None
        if here.digest != there.digest:
            return "", "", ""
    elif here.digest != there.digest:
        return _told(here, there)
    if here.kind == "set":
        return None if here.parts == there.parts else _told(here, there)
    return _difference_of_parts(here, there, grows)


def _told(here: Description, there: Description) -> tuple[str, str, str]:
    texts = str(here), str(there)
    if texts[0] == texts[1]:  # where they are cut, or of different types
        kinds = (here.type, there.type)
        notes = kinds if kinds[0] != kinds[1] else (here.digest[:8], there.digest[:8])
        name = "type" if kinds[0] != kinds[1] else "hash"
        texts = f"{here} ({name} {notes[0]})", f"{there} ({name} {notes[1]})"
    return "", *texts


def _difference_of_parts(
    here: Description, there: Description, grows: bool
) -> tuple[str, str, str] | None:
    ours, theirs = dict(here.parts), dict(there.parts)
    for label, part in ours.items():
        if label in theirs:
            found = difference(part, theirs[label])
            if found is not None:
                return label + found[0], *found[1:]
        elif not (grows or part.grows or part.made):
            return label, str(part), _MISSING
    if grows:
        return None
    for label, part in theirs.items():
        if label not in ours and not part.grows and not part.made:
            return label, _MISSING, str(part)
    if here.kind == "mapping" and [*ours] != [*theirs] and not _is_registry(here):
        return "", f"in the order {', '.join(ours)}", f"in the order {', '.join(theirs)}"
    return None


def fixed(described: Description) -> Description:
    """Returns a description without the attributes that code adds to, or makes."""
    kept = ((label, part) for label, part in described.parts if not part.grows and not part.made)
    parts = ((label, fixed(part)) for label, part in kept)
    return described._replace(parts=tuple(parts)) if described.parts else described


def _is_registry(described: Description) -> bool:
    return any(part.kind == "code" for label, part in described.parts if label[:1] == "[")


_ABSENT = Description("opaque", "missing", _MISSING)


def is_unmade(described: Description, made: str) -> bool:
    """Whether what code makes is not there yet: it is None, empty, or false where that counts."""
    if described.kind in ("mapping", "list", "set"):  # with settings, such as a `maxlen`
        return not any(label[:1] != "." for label, _ in described.parts)
    if described.type == "NoneType" or described.text in (_MISSING, _EMPTY):
        return True
    return made == TRUTH and described.kind == "value" and described.text in _FALSE


def difference_of_made(here: Description, there: Description) -> tuple[str, str, str] | None:
    """Returns where what code has made meanwhile first differs; None if it does not."""
    if here.made:
        return difference(here, there)
    theirs = dict(there.parts)
    for label, part in here.parts:
        found = difference_of_made(part, theirs[label]) if label in theirs else None
        if found is not None:
            return label + found[0], *found[1:]
    return None


def lacks(here: Description, there: Description) -> bool:
    """Whether code of a worker has still to make something that the trainer has."""
    if here.made and not is_unmade(here, here.made) and is_unmade(there, here.made):
        return True
    theirs = dict(there.parts)
    return any(
        lacks(part, theirs.get(label, _ABSENT))
        for label, part in here.parts
        if part.made or part.parts
    )


def without(described: Description, labels: set[str]) -> Description:
    """Leaves out entries that code assigns: by their labels, and with "" those that count."""
    counts = ("int", "float") if "" in labels else ()
    parts = tuple(
        (label, part)
        for label, part in described.parts
        if label not in labels and part.type not in counts
    )
    return described._replace(parts=parts)


def leaving(described: Description, labels: dict[str, bool], is_deep: bool) -> Description:
    """Marks the entries that code makes where they are absent.

    Args:
      described: a container.
      labels: of such entries, each with whether what is false counts as absent.
      is_deep: whether code may change what is in them: containers there are left out.
    """
    parts = []
    for label, part in described.parts:
        if label not in labels:
            parts.append((label, part))
        elif not is_deep or part.kind == "value":
            parts.append((label, part._replace(made=TRUTH if labels[label] else ONCE)))
    return described._replace(parts=tuple(parts)) if labels else described


def without_own(described: Description, entries: dict[tuple[str, ...], set[str]]) -> Description:
    """Leaves out entries that code assigns in attributes, at any depth."""
    if not described.parts:
        return described
    parts = []
    for label, part in described.parts:
        inner = without_own(part, entries)
        labels = entries.get((label[1:],)) if inner.grows else None
        parts.append((label, inner if labels is None else without(inner, labels)))
    return described._replace(parts=tuple(parts))


def growing(described: Description, labels: Iterable[str]) -> Description:
    """Marks parts that code adds to by methods of the object that holds them."""
    parts = ((label, part._replace(grows=label in labels)) for label, part in described.parts)
    return described._replace(parts=tuple(parts)) if labels else described
