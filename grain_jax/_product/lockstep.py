"""Equal steps on all processes: before a batch is handed out, all of them know that all have one.

The processes meet where their users ask for a batch, at the same place in each one's program, and
never in the thread that runs ahead: there they would come in an order of their own, and one that
was told to stop would leave the others waiting. A meeting tells what each has, a batch or the end
or an error, what the batch looks like, and how many batches each is sure to have after it that look
the same. For the least of these numbers no further meeting is needed, so that streams of known
length and shapes meet at their first batch and at the end.

Everything is decided from what all have said, so that all decide alike. An interrupt may come
between any two instructions, and whoever asks again must not be a step behind or ahead: so what was
said stands, what was heard is kept until the step is done, and where the steps stand is replaced as
a whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

from grain_jax._product.agreement import Facts, change, difference, largest, uneven
from grain_jax._product.exchange import Channel, Said
from grain_jax._product.terms import Terms
from grain_jax._values import faults
from grain_jax._values.errors import InvalidValueError

__all__ = ["STOP", "Lockstep", "Verdict"]

STOP: Any = object()

_BATCH, _END, _ERROR = "batch", "end", "error"
_LONGEST = 2000


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What all processes do with their batches at one step.

    Attributes:
      shapes: shape of a row of each leaf, by name, where those of the processes differ.
      masks: what each process says of its rows; None of one that has no batch.
    """

    shapes: dict[str, list[int]] | None = None
    masks: dict[int, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _At:
    """Where the steps stand.

    Attributes:
      moves: how often the position was set.
      number: of the next message since then.
      step: how many batches were handed out.
      certain: for how many more all have one.
      agreed: facts and mask of this process for those.
      verdict: for those.
      about: the batch that was decided on for last, which may be asked about again.
      is_over: whether all have come to the end.
    """

    moves: int = 0
    number: int = 0
    step: int = 0
    certain: int = 0
    agreed: Any = None
    verdict: Any = None
    about: Any = None
    is_over: bool = False


class Lockstep:
    """The steps of one iterator on this process, side by side with those on the others.

    Args:
      devices: of all processes that take part, the same list on each.
      rule: "error", "drop" or "pad" for what the processes do where some have ended; None is as
        "error".
      pads_rows: whether rows that differ in shape are padded to the larger.
      terms: what the processes need alike before their first batch from a position.
    """

    def __init__(
        self,
        devices: list[Any],
        rule: str | None,
        *,
        pads_rows: bool = False,
        terms: Terms | None = None,
    ) -> None:
        self._channel = Channel(devices)
        self._rule = rule
        self._pads_rows = pads_rows
        self._terms = terms
        # After how many moves the processes have come to terms.
        self._settled = -1
        self._restores = 0
        self._at = _At()
        self._heard: dict[Said, dict[int, Any]] = {}
        self._turn = 0

    @property
    def name(self) -> str | None:
        """What stands for the iterator on all processes, once they have met."""
        return self._channel.name

    @property
    def steps(self) -> int:
        """How many batches were handed out since the position was set."""
        return self._at.step

    def moved(self) -> None:
        """Forgets what was certain: all processes went to another position.

        Positions that are set one after the other count once: an interrupt may come as one is set.
        """
        at = self._at
        has_met = at.number or self._channel.has_said((at.moves, 0))
        if has_met or not at.moves:
            self._at = _At(moves=at.moves + 1)

    def restored(self, failure: BaseException | None) -> None:
        """Returns once all processes have restored a position.

        Args:
          failure: why this one has not; it does not wait for the others.

        Raises:
          InvalidValueError: if another one has not.
        """
        name = -1, self._restores
        mine = None if failure is None else faults.named(failure, _LONGEST)
        message, said = json.dumps(mine).encode(), {}
        if failure is None or not self._channel.say(name, message):
            said = self._channel.exchange(name, message)
        self._restores += 1
        for process, words in said.items():
            if failure is None and (text := json.loads(words)) is not None:
                raise InvalidValueError(
                    f"process {process} failed as its position was restored: {text}. This process"
                    " has restored its own: set a position on all processes before the next batch."
                )

    def close(self) -> None:
        """Lets nobody wait for a process that will not come again."""
        self._channel.leave()

    def batch(
        self,
        batch: Any,
        facts: Facts,
        sure: int,
        *,
        mask: Any = None,
        kept: Any = None,
        skeleton: Callable[[Verdict], Any] = lambda verdict: None,
        finish: Callable[[Verdict], Any] = lambda verdict: None,
    ) -> Any:
        """Returns what `finish` makes of the batch that this process has, or `STOP` before it.

        Args:
          batch: stands for itself: asking about it once more gives the same.
          facts: of it.
          sure: how many batches with equal facts and mask this process has after it, at least.
          mask: what the others are to know of its rows, a JSON value.
          kept: what processes with the same rows have alike, a JSON value.
          skeleton: makes what a process without a batch needs for padding, a JSON value.
          finish: makes what is handed out.

        Raises:
          InvalidValueError: if another process failed, or the processes differ; on all alike.
        """
        at = self._at
        if at.about is batch:
            return STOP if at.verdict is STOP else finish(at.verdict)
        if at.certain:
            if at.agreed != (facts, mask):
                raise InvalidValueError(f"at batch {at.step}, {change(at.agreed[0], facts)}")
            made = finish(at.verdict)
            self._at = dataclasses.replace(
                at, certain=at.certain - 1, step=at.step + 1, about=batch
            )
            return made
        self._turn = 0
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        mine = {"kind": _BATCH, "sure": sure, "facts": digest, "mask": mask, "kept": kept}
        said = self._meet({**mine, **self._first()})
        verdict = self._decide(said, facts)
        if verdict is STOP:
            self._advance(is_over=True, about=batch, verdict=STOP)
            return STOP
        has_ended = self._has_ended(said)
        if has_ended:
            self._receive(lambda: skeleton(verdict))
        if has_ended or verdict.shapes is not None:
            made = self._confirm(lambda: finish(verdict))
        else:
            made = finish(verdict)
        certain = 0 if has_ended else min(words["sure"] for words in said.values())
        self._advance(
            step=at.step + 1, certain=certain, agreed=(facts, mask), verdict=verdict, about=batch
        )
        return made

    def end(self, padding: Callable[[Any, Verdict], Any] = lambda bones, verdict: None) -> Any:
        """Returns what `padding` makes where this process has no further batch, or `STOP`.

        What it made is told of by `padded` when it is handed out.

        Args:
          padding: makes a batch of padding from the skeleton of another.

        Raises:
          InvalidValueError: as `batch` does.
        """
        at = self._at
        if at.is_over:
            return STOP
        if at.certain:
            raise InvalidValueError(
                f"this process said that it had {at.certain} batches more, and has none: its"
                " source ended before its own description says so."
            )
        self._turn = 0
        said = self._meet({"kind": _END, "sure": 0, **self._first()})
        verdict = self._decide(said, None)
        if verdict is STOP:
            self._advance(is_over=True)
            return STOP
        bones = self._receive(None)
        return self._confirm(lambda: padding(bones, verdict))

    def padded(self, batch: Any) -> None:
        """Notes that a batch of padding is handed out."""
        at = self._at
        if at.about is not batch:
            self._advance(step=at.step + 1, about=batch)

    def failed(self, error: BaseException) -> None:
        """Lets no other process wait for the batch that failed here."""
        at = self._at
        name = (at.moves, at.number)
        if at.certain or at.is_over or self._channel.has_said(name):
            return
        message = {"kind": _ERROR, "sure": 0, "text": faults.named(error, _LONGEST)}
        if not self._channel.say(name, json.dumps(message).encode()):
            self._turn = 0
            self._meet(message)
        self._at = dataclasses.replace(at, number=at.number + 1)

    def _meet(self, mine: Any) -> dict[int, Any]:
        """Returns what all have said in the next turn of this step; heard once, it stays so."""
        first = self._at.moves, self._at.number
        name = first[0], first[1] + self._turn
        if name not in self._heard:
            messages = self._channel.exchange(name, json.dumps(mine).encode())
            self._heard = {
                **{known: said for known, said in self._heard.items() if known >= first},
                name: {process: json.loads(message) for process, message in messages.items()},
            }
        self._turn += 1
        return self._heard[name]

    def _advance(self, **changes: Any) -> None:
        self._at = dataclasses.replace(self._at, number=self._at.number + self._turn, **changes)

    def _refuse(self, text: str) -> InvalidValueError:
        self._advance()
        return InvalidValueError(text)

    def _receive(self, make: Callable[[], Any] | None) -> Any:
        """Returns what the first process that makes something makes.

        Args:
          make: makes it, as a JSON value; None on a process that only wants it.

        Raises:
          InvalidValueError: if making it failed; on all alike.
        """
        mine: Any = None
        if make is not None:
            try:
                mine = {"made": make()}
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                mine = {"text": faults.named(error, _LONGEST)}
        said = self._meet(mine)
        process, found = next(pair for pair in said.items() if pair[1] is not None)
        if "text" in found:
            raise self._refuse(self._failure(process, found["text"]))
        return found["made"]

    def _confirm(self, make: Callable[[], Any]) -> Any:
        """Returns what `make` makes, once that has gone well on all processes.

        Raises:
          InvalidValueError: if it failed on another; here the error is itself.
        """
        made = failure = None
        try:
            made = make()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = error
        text = None if failure is None else faults.named(failure, _LONGEST)
        said = self._meet({"text": text})
        if failure is not None:
            self._advance()
            try:
                raise failure
            finally:
                del failure  # the traceback holds this frame
        for process, words in said.items():
            if words["text"] is not None:
                raise self._refuse(self._failure(process, words["text"]))
        return made

    def _failure(self, process: int, text: str) -> str:
        which = f"batch {self._at.step}" if self._at.step else "its first batch"
        return f"process {process} failed at {which}: {text}"

    def _decide(self, said: dict[int, Any], facts: Facts | None) -> Any:
        """Returns what all processes do at this step: a `Verdict`, or `STOP`."""
        for process, words in said.items():
            if words["kind"] == _ERROR:
                raise self._refuse(self._failure(process, words["text"]))
        having = [process for process, words in said.items() if words["kind"] == _BATCH]
        self._settle(said, having)
        if self._terms is not None and (problem := self._terms.unlike_rows(said, self._rule)):
            raise self._refuse(problem)
        if not having:
            return STOP
        if self._has_ended(said):
            self._check_end(said, having[0])
        shapes = self._compare({process: said[process] for process in having}, facts)
        if self._has_ended(said) and self._rule != "pad":
            return STOP
        return Verdict(shapes, {process: words.get("mask") for process, words in said.items()})

    def _first(self) -> dict[str, Any]:
        """What is said on top, until the processes have come to terms."""
        is_settled = self._terms is None or self._settled == self._at.moves
        return {} if is_settled else {"terms": self._terms.brief()}  # type: ignore[union-attr]

    def _settle(self, said: dict[int, Any], having: list[int]) -> None:
        """Refuses to go on where the processes need something alike that differs."""
        terms = self._terms
        if terms is None or not all("terms" in words for words in said.values()):
            return
        problem = terms.settle(
            {process: words["terms"] for process, words in said.items()},
            having,
            is_set=self._at.moves > 0,
            ask=lambda: self._meet(terms.whole()),
        )
        if problem:
            raise self._refuse(problem)
        self._settled = self._at.moves

    @staticmethod
    def _has_ended(said: dict[int, Any]) -> bool:
        return any(words["kind"] == _END for words in said.values())

    def _check_end(self, said: dict[int, Any], having: int) -> None:
        """Refuses an end on some processes only, where the rule has no answer to it."""
        dry = next(process for process, words in said.items() if words["kind"] == _END)
        step = self._at.step
        is_first = not step and not self._at.moves
        if self._rule == "pad" or (self._rule == "drop" and not is_first):
            return
        after = None if is_first else step
        raise self._refuse(uneven(dry, having, after, knows_rules=self._rule is not None))

    def _compare(self, said: dict[int, Any], facts: Facts | None) -> dict[str, list[int]] | None:
        """Compares the batches that are there; returns the shapes to pad to, if they differ."""
        if len({words["facts"] for words in said.values()}) == 1:
            return None
        texts = self._meet(facts)
        all_facts = {process: texts[process] for process in said}
        shapes = largest(all_facts) if self._pads_rows else None
        if shapes is None:
            raise self._refuse(difference(all_facts))
        return shapes
