"""The choice of a worker by text: its label, or its number where no label is another number.

What a number means must not depend on which labels exist, however they are spelled.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from capstan.core.config import join_names
from capstan.errors import InvalidRequestError
from capstan.storage.tape.index import worker_labels
from capstan.storage.tape.tape import Cut, Tape

# The number of workers that an error lists.
_SHOWN = 20

_GROUPS = re.compile(r"(?<=\d)[,'_ \u2019](?=\d)")
"""Separators of groups of digits."""
_BASES = re.compile(r"([+-]?)0([xob])([0-9a-f.]+(?:p[+-]?\d+)?)", re.ASCII)
_SUFFIX = re.compile(r"(?<=[\d.])\s*[dfl%]$")
"""What languages and people write behind a number."""


def number_in(text: str) -> float | None:
    """The number that a text reads as, in any usual spelling; None for other text."""
    plain = unicodedata.normalize("NFKC", text).strip().lower().replace("\u2212", "-")
    based = _BASES.fullmatch(plain)
    try:
        if based is not None:
            if based[2] == "x":
                return float.fromhex(plain)
            return float(int(plain, 0))
        return float(_SUFFIX.sub("", _GROUPS.sub("", plain)))
    except (ValueError, OverflowError):
        return unicodedata.numeric(text, None) if len(text) == 1 else None


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """What texts choose among workers: labels, and numbers if no label is another's number."""

    labels: Mapping[int, str]
    by_label: Mapping[str, int]
    by_number: bool

    @classmethod
    def among(cls, labels: Mapping[int, str]) -> WorkerChoice:
        """The choice among workers with these labels by number."""
        others = (label for worker, label in labels.items() if label != str(worker))
        by_number = all(number_in(label) is None for label in others)
        return cls(labels, {label: worker for worker, label in labels.items()}, by_number)

    def worker(self, text: str) -> int | None:
        """The worker that a text chooses: a label as it is written, or a plain number, or none."""
        if text in self.by_label or not self.by_number:
            return self.by_label.get(text)
        plain = text.isascii() and text.isdecimal() and len(text) < 20 and text == str(int(text))
        return int(text) if plain and int(text) in self.labels else None

    def equal_label(self, text: str) -> str | None:
        """The first label that reads as the same number as a text."""
        number = number_in(text)
        equal = (label for label in self.by_label if number_in(label) == number)
        return None if number is None else next(equal, None)


def resolve_workers(tape: Tape, cut: Cut, chosen: Collection[str] | None) -> dict[int, str]:
    """Workers by label or number, in the order given; None selects all."""
    labels = worker_labels(tape, cut)
    if chosen is None:
        return labels
    choice = WorkerChoice.among(labels)
    selected: dict[int, str] = {}
    for text in chosen:
        worker = choice.worker(text)
        if worker is None:
            raise _unknown_worker(tape, choice, text)
        selected[worker] = labels[worker]
    return selected


def _unknown_worker(tape: Tape, choice: WorkerChoice, text: str) -> InvalidRequestError:
    known, equal = list(choice.by_label), choice.equal_label(text)
    more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
    meant = "" if equal is None else f"; did you mean {join_names([equal])}?"
    by = "label or number" if choice.by_number else "label, as it is written there"
    return InvalidRequestError(
        "CAP-WORKER",
        f"stream {tape.name} has no worker {text!r}: it has {join_names(known[:_SHOWN])}{more}",
        f"give workers by {by}, separated by commas, "
        f"and a label with a comma, or with blanks at its ends, in double quotes{meant}",
        stream=tape.name,
        worker=text,
    )
