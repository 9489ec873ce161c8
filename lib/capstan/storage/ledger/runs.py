"""The runs ledger: each step of each attempt of each run, and what follows from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from capstan.core.times.region import Region
from capstan.error_translation import root_message, translate
from capstan.errors import FencedError, InvalidRequestError, SystemFailureError
from capstan.storage.lake import Lake
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.run_identity import DIGITS, RunId, short_name, stem_of
from capstan.storage.ledger.tables import append_rows, as_text, read_rows


class Step(StrEnum):
    """What a row of the runs ledger says of an attempt."""

    INTENT = "intent"
    """It will publish; its detail is the request and what the target was before."""
    AUDITED = "audited"
    """Its output is staged and has passed its audit; it waits to be published."""
    APPROVED = "approved"
    """A person has approved what waits; its detail says who, when and why."""
    REJECTED = "rejected"
    """A person has rejected it: it is not published, and its staging stays to be looked at."""
    DONE = "done"
    """It has published; its detail is the certificate."""
    FAILED = "failed"
    """It ended without publishing; its detail is the error."""
    ROLLED_BACK = "rolled-back"
    """What it published was taken back."""


AGAIN = "give the same command again"
"""What to do about a run that failed by what nobody foresaw."""

# After one of these an attempt holds nothing any more.
TERMINAL = frozenset({Step.DONE, Step.FAILED, Step.ROLLED_BACK, Step.REJECTED})


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the ledger."""

    run: str
    identity: str
    generation: int
    attempt: int
    step: Step
    stream: str
    target: str
    at: datetime
    detail: Mapping[str, object]

    @property
    def target_version(self) -> int:
        """The version of the target: before an intent, after a publish or a rollback."""
        return int(str(self.detail["target_version"]))

    @property
    def certificate(self) -> Certificate:
        """The certificate of an intent, as far as it was known."""
        draft = self.detail.get("certificate")
        return Certificate.from_json(draft if isinstance(draft, Mapping) else {})

    @property
    def error(self) -> Mapping[str, object]:
        """The coded error that the attempt ended with; empty for other steps."""
        if self.step is not Step.FAILED:
            return {}
        said = str(self.detail.get("error"))
        if said.startswith("CAP-"):
            return self.detail
        # Ledgers of before keep what was raised by others as it was, with all its stack.
        raised = Exception(said)
        found = translate(raised) or SystemFailureError("CAP-BROKEN", root_message(raised), AGAIN)
        return found.to_json()


@dataclass(frozen=True, slots=True)
class History:
    """All rows of one run, in the order they were written."""

    rows: tuple[Row, ...]

    @property
    def last(self) -> Row:
        """The newest row."""
        return self.rows[-1]

    @property
    def run_id(self) -> RunId:
        """The run's identity and generation."""
        last = self.last
        return RunId.named(last.run, last.identity, last.generation, last.target)

    @property
    def attempts(self) -> int:
        """The number of the newest attempt."""
        return max(row.attempt for row in self.rows)

    @property
    def certificate(self) -> Certificate | None:
        """The certificate, when the run has published."""
        done = self.done
        return None if done is None else Certificate.from_json(done.detail)

    @property
    def done(self) -> Row | None:
        """The row of the publish, if there is one."""
        return next((row for row in reversed(self.rows) if row.step is Step.DONE), None)

    @property
    def published(self) -> bool:
        """Whether it has published and was not rolled back."""
        return self.done is not None and not self.rolled_back

    @property
    def rolled_back(self) -> bool:
        """Whether what it published was taken back."""
        return any(row.step is Step.ROLLED_BACK for row in self.rows)

    @property
    def mode(self) -> str | None:
        """The mode by which it set out to change its target; None where it has not said so."""
        intent = self.effective_intent
        request = None if intent is None else intent.detail.get("request")
        return str(request["mode"]) if isinstance(request, Mapping) and "mode" in request else None

    @property
    def region(self) -> Region | None:
        """The times that it set out to play; None where it has not said so."""
        intent = self.effective_intent
        return None if intent is None else parse_region(str(intent.detail["region"]))

    def state(self, *, holds: bool) -> str:
        """The state of the run, in a word.

        Args:
            holds: Whether it holds its range: of one that has begun, whether it is at work still.

        Returns:
            `begun`, `stopped`, `audited`, `approved`, `rejected`, `published`, `failed` or
            `rolled back`. One that has stopped was killed or interrupted; it may have published,
            and the same replay again finds out, and goes on.
        """
        if self.done is not None:
            return "rolled back" if self.rolled_back else "published"
        if self.last.step is Step.INTENT:
            return "begun" if holds else "stopped"
        return str(self.last.step).replace("-", " ")

    def approval(self, attempt: int) -> Mapping[str, object] | None:
        """Who has approved what an attempt has staged, and when; None where nobody was asked."""
        found = [r for r in self.rows if r.attempt == attempt and r.step is Step.APPROVED]
        return found[-1].detail if found else None

    def intent(self, attempt: int) -> Row | None:
        """What an attempt said it would do, if it got so far."""
        found = [r for r in self.rows if r.attempt == attempt and r.step is Step.INTENT]
        return found[-1] if found else None

    @property
    def effective_intent(self) -> Row | None:
        """The intent that counts: of the attempt that has published, else the newest one.

        An attempt that was taken over may write its own after the one that took over has published.
        """
        if self.done is not None:
            return self.intent(int(str(self.done.detail["attempt"])))
        return next((row for row in reversed(self.rows) if row.step is Step.INTENT), None)

    @property
    def first_intent(self) -> Row | None:
        """The earliest intent of any attempt."""
        return next((row for row in self.rows if row.step is Step.INTENT), None)


def read_histories(lake: Lake, **equal: object) -> dict[str, History]:
    """Histories by run of the rows with these column values, in the order the runs began."""
    grouped: dict[str, list[Row]] = {}
    for row in read_rows(lake, "runs", **equal):
        grouped.setdefault(str(row["run"]), []).append(_row(row))
    return {run: History(tuple(rows)) for run, rows in grouped.items()}


def name_run(lake: Lake, identity: str, generation: int, target: str) -> RunId:
    """A run, under a name that it can be found by: no run of another identity has one like it.

    Args:
        lake: The lake.
        identity: The run's identity; the names that runs of it have already go on.
        generation: Its generation.
        target: The target's path.
    """
    first = RunId(identity, generation, short_name(target))
    own, others = "", set[str]()
    # No other names can be in the way, and files without one of these are not opened.
    alike = {"run": (first.stem, f"{first.stem}\U0010ffff")}
    named = ("run", "identity")
    rows = read_rows(lake, "runs", named, alike)
    for row in [*rows, *read_rows(lake, "runs", named, identity=identity)]:
        run = str(row["run"])
        if row["identity"] == identity:
            own = run
        elif run.startswith(first.stem):
            others.add(stem_of(run))
    if own and stem_of(own) not in others:
        return RunId.named(own, identity, generation, target)
    # With all its digits it is the identity, which no other has.
    found = (replace(first, digits=digits) for digits in DIGITS)
    return next(run for run in found if run.stem not in others or run.digits == DIGITS[-1])


def require_unique_name(lake: Lake, run: RunId) -> None:
    """Check that no run of another identity has got a run's name, since it was chosen.

    Raises:
        FencedError: `CAP-FENCED`; under the next name there is nobody else.
    """
    rows = read_rows(lake, "runs", ("identity",), run=run.name)
    if any(row["identity"] != run.identity for row in rows):
        raise FencedError(
            "CAP-FENCED",
            f"run {run.name}: another replay has begun under the same name",
            "the same command again gives it a longer name",
            run=run.name,
        )


def read_last(lake: Lake, identity: str) -> History | None:
    """The history of an identity's highest generation; those before it are not parsed."""
    return _newest(lake, _brief(lake, identity=identity))


def read_last_published(lake: Lake, identity: str) -> History | None:
    """The history of the highest generation of an identity that has published, and stands."""
    return _newest(
        lake, {run: of for run, of in _brief(lake, identity=identity).items() if of.stands}
    )


def read_unrecorded(lake: Lake, target: str) -> dict[str, History]:
    """Histories of runs into a target of which the ledger does not say that they have published."""
    names = tuple(run for run, of in _brief(lake, target=target).items() if not of.said)
    return read_histories(lake, run=names) if names else {}


@dataclass(slots=True)
class _Brief:
    """A run without the details of its steps."""

    generation: int
    steps: set[object]

    @property
    def said(self) -> bool:
        return not self.steps.isdisjoint({Step.DONE, Step.ROLLED_BACK})

    @property
    def stands(self) -> bool:
        return Step.DONE in self.steps and Step.ROLLED_BACK not in self.steps


def _brief(lake: Lake, **equal: object) -> dict[str, _Brief]:
    found: dict[str, _Brief] = {}
    for row in read_rows(lake, "runs", ("run", "generation", "step"), **equal):
        of = found.setdefault(str(row["run"]), _Brief(0, set()))
        of.generation = int(str(row["generation"]))
        of.steps.add(row["step"])
    return found


def _newest(lake: Lake, found: Mapping[str, _Brief]) -> History | None:
    run = max(found, key=lambda run: found[run].generation, default=None)
    return None if run is None else read_histories(lake, run=run).get(run)


def read_history(lake: Lake, run: str) -> History:
    """The history of one run.

    Raises:
        InvalidRequestError: `CAP-RUN` when there is no such run.
    """
    found = read_histories(lake, run=run).get(run)
    if found is None:
        raise InvalidRequestError(
            "CAP-RUN", f"there is no run {run}", "see `capstan runs`", run=run
        )
    return found


def write_step(
    lake: Lake,
    run: RunId,
    attempt: int,
    step: Step,
    *,
    stream: str,
    target: str,
    detail: Mapping[str, object],
) -> None:
    """Append one row."""
    row = {
        "run": run.name,
        "identity": run.identity,
        "generation": run.generation,
        "attempt": attempt,
        "step": str(step),
        "stream": stream,
        "target": target,
        "detail": as_text(detail),
    }
    append_rows(lake, "runs", [row])


def _row(row: Mapping[str, object]) -> Row:
    at = row["at"]
    assert isinstance(at, datetime)
    return Row(
        str(row["run"]),
        str(row["identity"]),
        int(str(row["generation"])),
        int(str(row["attempt"])),
        Step(str(row["step"])),
        str(row["stream"]),
        str(row["target"]),
        at,
        json.loads(str(row["detail"])),
    )
