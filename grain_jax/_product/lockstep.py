"""Equal steps on all processes: before a batch is handed out, all of them know that all have one.

The processes meet where their users ask for a batch, at the same place in each one's program, and
never in the thread that runs ahead: there they would come in an order of their own, and one that
was told to stop would leave the others waiting. A meeting tells what each has, a batch or the end
or an error, and how many batches each is sure to have after it. For the least of these numbers no
further meeting is needed, so that streams of known length meet at their first batch and at the end.

Everything is decided from what all have said, so that all decide alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from grain_jax._product.agreement import Facts, difference
from grain_jax._product.exchange import exchange
from grain_jax._values.errors import InvalidValueError

__all__ = ["STOP", "TAKE", "Lockstep"]

TAKE, STOP = "take", "stop"

_BATCH, _END, _ERROR = "batch", "end", "error"


class Lockstep:
    """The steps of one iterator on this process, side by side with those on the others.

    Args:
      devices: of all processes that take part, the same list on each.
      rule: "error", "drop" or "pad"; None compares first batches and nothing more.

    Attributes:
      others_ended: whether some process has no batch at the step that was met for last, so that
        those that have one `send` what padding needs.
    """

    def __init__(self, devices: list[Any], rule: str | None) -> None:
        self._devices = devices
        self._rule = rule
        self._step = 0
        self._certain = 0
        self._compared = self._moved = False
        self.others_ended = False

    def moved(self) -> None:
        """Forgets what was certain: all processes went to another position."""
        self._certain = 0
        self._moved = True
        self.others_ended = False

    def batch(self, facts: Facts | None, sure: int) -> str:
        """Says what to do with the batch that this process has: `TAKE`, or `STOP` before it.

        Args:
          facts: of the batch.
          sure: how many batches this process has after it, at least.

        Raises:
          InvalidValueError: if another process failed, or the processes differ; on all alike.
        """
        if self._certain:
            self._certain -= 1
        elif self._rule is not None or not self._compared:
            said = self._meet({"kind": _BATCH, "sure": sure, "facts": _digest(facts)})
            if self._decide(said, facts) == STOP:
                return STOP
        self._step += 1
        return TAKE

    def end(self) -> str:
        """Says what to do where this process has no further batch: `STOP`, or `TAKE` padding.

        Raises:
          InvalidValueError: as `batch` does.
        """
        if self._rule is None and self._compared:
            return STOP
        if self._certain:
            raise InvalidValueError(
                f"this process said that it had {self._certain} batches more, and has none: its"
                " source ended before its own description says so."
            )
        verdict = self._decide(self._meet({"kind": _END, "sure": 0}), None)
        self._step += verdict == TAKE
        return verdict

    def failed(self, error: BaseException) -> None:
        """Lets no other process wait for the batch that failed here."""
        if not self._certain and (self._rule is not None or not self._compared):
            self._meet({"kind": _ERROR, "sure": 0, "text": f"{type(error).__name__}: {error}"})

    def send(self, make: Callable[[], dict[str, Any]] | None) -> dict[str, Any]:
        """Returns what the first process that makes something makes.

        Args:
          make: makes it, as a JSON value; None on a process that only wants it.

        Raises:
          InvalidValueError: if making it failed; on all alike.
        """
        value: Any = None
        if make is not None:
            try:
                value = make()
            except InvalidValueError as error:
                value = {"error": str(error)}
        messages = exchange(self._devices, json.dumps(value).encode())
        values = map(json.loads, messages.values())
        found: dict[str, Any] = next(value for value in values if value is not None)
        if "error" in found:
            raise InvalidValueError(found["error"])
        return found

    def _meet(self, mine: dict[str, Any]) -> dict[int, dict[str, Any]]:
        messages = exchange(self._devices, json.dumps(mine).encode())
        return {process: json.loads(message) for process, message in messages.items()}

    def _decide(self, said: dict[int, dict[str, Any]], facts: Facts | None) -> str:
        """Returns what all processes do at this step."""
        for process, words in said.items():
            if words["kind"] == _ERROR:
                which = "its first batch" if not self._step else f"batch {self._step}"
                raise InvalidValueError(f"process {process} failed at {which}: {words['text']}")
        having = [process for process, words in said.items() if words["kind"] == _BATCH]
        if not having:
            return STOP
        if len(having) < len(said):
            self._check_end(said, having[0])
        if not self._compared:
            self._compare({process: said[process] for process in having}, facts)
        if len(having) == len(said):
            self._certain = min(words["sure"] for words in said.values())
            return TAKE
        if self._rule != "pad":
            return STOP
        self.others_ended = True
        return TAKE

    def _check_end(self, said: dict[int, dict[str, Any]], having: int) -> None:
        """Refuses an end on some processes only, where the rule has no answer to it."""
        dry = next(process for process, words in said.items() if words["kind"] == _END)
        is_first = not self._step and not self._moved
        if self._rule == "pad" or (self._rule == "drop" and not is_first):
            return
        if is_first:
            raise InvalidValueError(
                f"process {dry} has no batch at all, and process {having} has one: the steps of the"
                " processes would not match. Give each process its share of the records"
                " (ShardBySharding), and no more processes than there are batches."
            )
        raise InvalidValueError(
            f"process {dry} has no batch after {self._step}, and process {having} has one: the"
            " steps of the processes would not match. Use remainder='drop' to stop on all of them"
            " there, or remainder='pad' to go on, with batches of padding, until none has one."
        )

    def _compare(self, said: dict[int, dict[str, Any]], facts: Facts | None) -> None:
        """Compares the first batches, once: those that are there."""
        if len({words["facts"] for words in said.values()}) > 1:
            messages = exchange(self._devices, json.dumps(facts).encode())
            texts = {process: json.loads(message) for process, message in messages.items()}
            raise InvalidValueError(difference({p: texts[p] for p in said}))
        self._compared = True


def _digest(facts: Facts | None) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
