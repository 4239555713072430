"""What can happen to a state: an edited field, a flipped byte, a file cut short or misplaced."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

__all__ = ["mutate_bytes", "mutate_files", "mutate_value"]

_STRANGE: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    10**6,
    2**50,
    2**63,
    10**200,
    0.0,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "1",
    "__import__('os').abort()",
    "../../etc/passwd",
    [],
    [0],
    [[]],
    [0, 0, 0, 0],
    {},
    {"grain_jax": 1},
]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Returns every (container, key) inside a JSON value."""
    pairs = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        pairs = list(enumerate(value))
    found = [(value, key) for key, _ in pairs]
    for _, item in pairs:
        found += _places(item)
    return found


def mutate_value(value: Any, rng: random.Random) -> Any:
    """Returns a JSON value with one thing changed in it, or another value altogether."""
    value = copy.deepcopy(value)
    places = _places(value)
    if not places or rng.random() < 0.02:
        return rng.choice(_STRANGE)
    holder, key = rng.choice(places)
    old = holder[key]
    kind = rng.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1 and type(old) is int:
        holder[key] = old + rng.choice([-2, -1, 1, 2, 10, 1000])
    elif kind == 2 and isinstance(holder, dict):
        holder[str(rng.choice([key + "x", key.upper(), ""]))] = holder.pop(key)
    elif kind == 3 and isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), copy.deepcopy(rng.choice([old, *_STRANGE])))
    elif kind == 4:
        other, other_key = rng.choice(places)
        holder[key] = copy.deepcopy(other[other_key])
    elif kind == 5 and isinstance(holder, dict):
        holder[rng.choice(["more", "position", "cursor", "version"])] = rng.choice(_STRANGE)
    else:
        holder[key] = copy.deepcopy(rng.choice(_STRANGE))
    return value


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Returns damaged bytes."""
    begin = rng.randint(0, len(data))
    end = min(len(data), begin + rng.choice([1, 1, 2, 8, 50]))
    kind = rng.randrange(8)
    if kind == 0:
        return data[:begin]
    if kind == 1:
        return data[begin:]
    if kind == 2:
        return data[:begin] + data[end:]
    if kind == 3:
        return data[:begin] + rng.randbytes(rng.randint(1, 5)) + data[begin:]
    if kind == 4 and data:
        place = min(begin, len(data) - 1)
        flipped = data[place] ^ (1 << rng.randrange(8))
        return data[:place] + bytes([flipped]) + data[place + 1 :]
    if kind == 5:
        return data[:begin] + data[begin:end] * 2 + data[end:]
    if kind == 6:
        digits = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
        if digits:
            place = rng.choice(digits)
            return data[:place] + str(rng.randrange(10)).encode() + data[place + 1 :]
    many = rng.choice([b"[" * 100_000, b"9" * 5000, b"\xef\xbb\xbf" + data, b"\0" * 20, data * 2])
    return many


def mutate_files(folder: Path, other: bytes, rng: random.Random) -> None:
    """Damages the files of a checkpoint's item.

    Args:
      folder: where they are.
      other: the state of another moment or pipeline.
      rng: which damage.
    """
    path = rng.choice(sorted(folder.iterdir()))
    kind = rng.randrange(6)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        name = rng.choice(["process_1-of-2.json", "process_0-of-3.json", "process_0.json", "x"])
        path.rename(folder / name)
    elif kind == 2:
        (folder / rng.choice(["process_1-of-2.json", "process_0-of-2.json"])).write_bytes(other)
    elif kind == 3:
        path.write_bytes(other)
    elif kind == 4:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    else:
        text = json.dumps(mutate_value(json.loads(path.read_bytes()), rng))
        path.write_text(text)
