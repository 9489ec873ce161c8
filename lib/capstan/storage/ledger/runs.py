"""The runs ledger: each step of each attempt of each run, and the histories made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from capstan.core.json_object import Json
from capstan.core.times.region import Region
from capstan.errors import FencedError, InvalidRequestError, SystemFailureError
from capstan.errors.translation import root_message, translate
from capstan.storage.lake import Lake
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.made_by import KEY, MadeBy, signed
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.run_identity import DIGITS, RunId, short_name, stem_of
from capstan.storage.ledger.tables import LedgerRow, append_rows, as_text, read_places, read_rows


class Step(StrEnum):
    """The kind of a row in the runs ledger."""

    INTENT = "intent"
    """About to publish; the detail is the request and the previous state of the target."""
    AUDITED = "audited"
    """Staged and audited, waiting for approval."""
    APPROVED = "approved"
    """Approved by a person; the detail has name, time and reason."""
    REJECTED = "rejected"
    """Rejected by a person; not published, but the staged output is kept for inspection."""
    DONE = "done"
    """Published; the detail is the certificate."""
    FAILED = "failed"
    """Ended without a publish; the detail is the error."""
    ROLLED_BACK = "rolled-back"
    """The publish was rolled back."""


AGAIN = "repeat the command"
"""The hint for a run that failed with an unknown error."""

_RECORDED = frozenset({Step.DONE, Step.ROLLED_BACK})

# After one of these steps an attempt holds no claim.
TERMINAL = frozenset({Step.DONE, Step.FAILED, Step.ROLLED_BACK, Step.REJECTED})

# The details of the others are what an audit or a certificate says.
_SIGNED = frozenset(Step) - {Step.AUDITED, Step.DONE}


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
    detail: Json

    @property
    def target_version(self) -> int:
        """The version of the target: before an intent, after a publish or a rollback."""
        return int(self.detail["target_version"])

    @property
    def made_by(self) -> MadeBy | None:
        """Who had it made; None if it does not say."""
        return MadeBy.of_detail(self.detail)

    @property
    def stated(self) -> Json:
        """The detail without who made it."""
        return {name: value for name, value in self.detail.items() if name != KEY}

    @property
    def certificate(self) -> Certificate:
        """The certificate of an intent, as far as it was known."""
        draft = self.detail.get("certificate")
        return Certificate.from_json(draft if isinstance(draft, Mapping) else {})

    @property
    def error(self) -> Json:
        """The coded error of a failed attempt; empty for other steps."""
        if self.step is not Step.FAILED:
            return {}
        code = str(self.detail.get("error"))
        if code.startswith("CAP-"):
            return self.stated
        # Older ledgers have the text of a foreign exception, with its whole stack.
        error = Exception(code)
        coded = translate(error) or SystemFailureError("CAP-BROKEN", root_message(error), AGAIN)
        return coded.to_json()


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
        """The certificate, if the run has published."""
        done = self.done
        return None if done is None else Certificate.from_json(done.detail)

    @property
    def done(self) -> Row | None:
        """The row of the publish, if there is one."""
        return self._last(Step.DONE)

    @property
    def published(self) -> bool:
        """Whether it has published and was not rolled back."""
        return self.done is not None and not self.rolled_back

    @property
    def rolled_back(self) -> bool:
        """Whether its publish was rolled back."""
        return self._last(Step.ROLLED_BACK) is not None

    @property
    def mode(self) -> str | None:
        """The mode of the intended publish; None without an intent."""
        intent = self.effective_intent
        request = None if intent is None else intent.detail.get("request")
        return str(request["mode"]) if isinstance(request, Mapping) and "mode" in request else None

    @property
    def region(self) -> Region | None:
        """The times of the intended publish; None without an intent."""
        intent = self.effective_intent
        return None if intent is None else parse_region(str(intent.detail["region"]))

    def state(self, *, holds: bool) -> str:
        """The state of the run in one word; `holds` is whether it holds its claim.

        `begun`, `stopped`, `audited`, `approved`, `rejected`, `published`, `failed` or `rolled
        back`. A stopped run was killed or interrupted; it holds no claim. It may have published;
        the same replay finds out and continues.
        """
        if self.done is not None:
            return "rolled back" if self.rolled_back else "published"
        if self.last.step is Step.INTENT:
            return "begun" if holds else "stopped"
        return str(self.last.step).replace("-", " ")

    def approval(self, attempt: int) -> Json | None:
        """Name, time and reason of an attempt's approval; None without one."""
        row = self._last(Step.APPROVED, attempt)
        return None if row is None else row.stated

    def intent(self, attempt: int) -> Row | None:
        """The intent of an attempt, if it got so far."""
        return self._last(Step.INTENT, attempt)

    def _last(self, step: Step, attempt: int | None = None) -> Row | None:
        rows = (row for row in reversed(self.rows) if row.step is step)
        return next((row for row in rows if attempt in (None, row.attempt)), None)

    @property
    def effective_intent(self) -> Row | None:
        """The intent of the attempt that published, or else the newest one."""
        # An attempt that lost its claim may write its intent after its successor has published.
        if self.done is not None:
            return self.intent(self.done.detail.get("attempt", self.done.attempt))
        return self._last(Step.INTENT)

    @property
    def first_intent(self) -> Row | None:
        """The earliest intent of any attempt."""
        return next((row for row in self.rows if row.step is Step.INTENT), None)


def read_histories(lake: Lake, **equal: object) -> dict[str, History]:
    """Histories by run, from the rows with these column values, in the order the runs started."""
    grouped: dict[str, list[Row]] = {}
    moved = bool(read_places(lake))
    for row in read_rows(lake, "runs", **equal):
        detail = json.loads(row["detail"])
        if moved:
            _set_path(detail, row["target"])
        parsed = {**row, "step": Step(row["step"]), "detail": detail}
        grouped.setdefault(row["run"], []).append(Row(**parsed))
    return {run: History(tuple(rows)) for run, rows in grouped.items()}


def _set_path(detail: dict[str, Any], path: str) -> None:
    """Set the target's present path in a certificate, or in the draft of an intent."""
    for certificate in (detail, detail.get("certificate")):
        if isinstance(certificate, dict) and certificate.get("target_path"):
            certificate["target_path"] = path


def name_run(lake: Lake, identity: str, generation: int, target: str) -> RunId:
    """Choose a run's name that no run of another identity shares."""
    [named] = name_runs(lake, [identity], generation, target)
    return named


def name_runs(lake: Lake, identities: Sequence[str], generation: int, target: str) -> list[RunId]:
    """Choose names of runs that no recorded run of another identity shares."""
    firsts = [RunId(identity, generation, short_name(target)) for identity in identities]
    stems = [first.stem for first in firsts]
    # Only names with one of these prefixes can clash; files without them are not opened.
    between = {"run": (min(stems), f"{max(stems)}\U0010ffff")}
    columns = ("run", "identity")
    rows = read_rows(lake, "runs", columns, between)
    rows += read_rows(lake, "runs", columns, identity=tuple(identities), target=target)
    return [_named(first, rows, target) for first in firsts]


def _named(first: RunId, rows: Sequence[LedgerRow], target: str) -> RunId:
    existing, others = "", set[str]()
    for row in rows:
        run = row["run"]
        if row["identity"] == first.identity:
            existing = run
        elif run.startswith(first.stem):
            others.add(stem_of(run))
    if existing and stem_of(existing) not in others:
        return RunId.named(existing, first.identity, first.generation, target)
    # With all digits the name contains the whole identity, which is unique.
    candidates = (replace(first, digits=digits) for digits in DIGITS)
    return next(run for run in candidates if run.stem not in others or run.digits == DIGITS[-1])


def require_unique_name(lake: Lake, run: RunId) -> None:
    """Check that no run of another identity has taken a run's name since it was chosen."""
    rows = read_rows(lake, "runs", ("identity",), run=run.name)
    if any(row["identity"] != run.identity for row in rows):
        raise FencedError(
            "CAP-FENCED",
            f"run {run.name}: another replay has started under the same name",
            "repeat the command; it gets a longer name",
            run=run.name,
        )


def begun(lake: Lake, identities: Sequence[str], target: str) -> set[str]:
    """Those of some identities of which a run is recorded."""
    rows = read_rows(lake, "runs", ("identity",), identity=tuple(identities), target=target)
    return {row["identity"] for row in rows}


def read_last(lake: Lake, identity: str, target: str) -> History | None:
    """The history of an identity's highest generation; earlier ones are not parsed.

    The target is that of the identity. Rows of one target are together in the ledger.
    """
    return _newest(lake, _steps(lake, identity=identity, target=target))


def read_last_published(lake: Lake, identity: str, target: str) -> History | None:
    """The history of the highest generation of an identity whose publish is in effect."""
    steps = _steps(lake, identity=identity, target=target)
    return _newest(lake, [run for run in steps if steps[run] & _RECORDED == {Step.DONE}])


def read_unrecorded(lake: Lake, target: str) -> dict[str, History]:
    """Histories of runs into a target without a recorded publish."""
    steps = _steps(lake, target=target)
    names = tuple(run for (_, run), taken in steps.items() if not taken & _RECORDED)
    return read_histories(lake, run=names) if names else {}


def _steps(lake: Lake, **equal: object) -> dict[tuple[int, str], set[str]]:
    """The steps of runs, by generation and name; their details are not read."""
    steps: dict[tuple[int, str], set[str]] = {}
    for row in read_rows(lake, "runs", ("run", "generation", "step"), **equal):
        steps.setdefault((row["generation"], row["run"]), set()).add(row["step"])
    return steps


def _newest(lake: Lake, runs: Iterable[tuple[int, str]]) -> History | None:
    _, run = max(runs, default=(0, None))
    return None if run is None else read_histories(lake, run=run).get(run)


def read_history(lake: Lake, run: str) -> History:
    """The history of one run."""
    history = read_histories(lake, run=run).get(run)
    if history is None:
        raise InvalidRequestError(
            "CAP-RUN", f"there is no run {run}", "see `capstan runs`", run=run
        )
    return history


def write_step(
    lake: Lake, run: RunId, attempt: int, step: Step, *, stream: str, target: str, detail: Json
) -> None:
    """Append a row to the ledger."""
    write_steps(lake, [step_row(run, attempt, step, stream=stream, target=target, detail=detail)])


def write_steps(lake: Lake, rows: Sequence[LedgerRow]) -> None:
    """Append rows that `step_row` has made, in one commit."""
    append_rows(lake, "runs", rows)


def step_row(
    run: RunId, attempt: int, step: Step, *, stream: str, target: str, detail: Json
) -> LedgerRow:
    """A row for the ledger."""
    return {
        "run": run.name,
        "identity": run.identity,
        "generation": run.generation,
        "attempt": attempt,
        "step": str(step),
        "stream": stream,
        "target": target,
        "detail": as_text(signed(detail) if step in _SIGNED else detail),
    }
