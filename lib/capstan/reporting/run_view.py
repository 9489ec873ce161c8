"""Read models of runs: request, certificate, steps, audits, findings."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter

from capstan.core.config import split_streams
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError
from capstan.reporting.activity import CLAIMED, Activity, TaskProgress, activity_of
from capstan.reporting.makers import Deed, deeds
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.claims import Claim
from capstan.storage.ledger.made_by import MadeBy
from capstan.storage.ledger.runs import History, Row, Step, read_histories
from capstan.storage.ledger.tables import LedgerRow, read_rows

_RUN = re.compile(r"[a-z0-9_]{1,40}-[0-9a-f]{8}-[1-9][0-9]{0,9}")
_AUDITS = frozenset({"CAP-AUDIT", "CAP-CHECK"})
"""Codes of a failed audit; the fields of the error are its results."""


@dataclass(frozen=True, slots=True)
class FindingsView:
    """The findings of one audit of a run, as a sample with the totals of their kinds."""

    at: datetime
    audit: str
    target_version: int | None  # None for staged output, or for the newest
    rows: tuple[Json, ...]


Owner = tuple[str, str | None]
"""What decides who may see a run: its stream, and the declared replay that its request names."""


@dataclass(frozen=True, slots=True)
class RunView:
    """One run."""

    run: str
    stream: str  # of several, their names joined by `+`
    target: str
    state: str  # as `History.state`; `claimed` before its first step
    holds: bool
    attempts: int
    at: datetime
    certificate: Certificate | None = None  # a draft before publishing; None before the plan
    published: bool = False  # whether the certificate is final
    audit: Json = field(default_factory=dict)  # of published or staged rows; empty without one
    difference: Json = field(default_factory=dict)  # shown for an approval; empty without one
    request: Json = field(default_factory=dict)
    steps: tuple[Row, ...] = ()
    found: tuple[FindingsView, ...] = ()  # the newest first; only when a single run is viewed
    claim: Claim | None = None  # that it holds
    begun: Mapping[int, datetime] = field(default_factory=dict)  # of attempts; only of a single run
    task: TaskProgress | None = None  # of what has it made; None if it is not known

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams."""
        return tuple(dict.fromkeys(split_streams(self.stream)))

    @property
    def owner(self) -> Owner:
        """Its stream, and the declared replay that its request names; None for none."""
        replay = self.request.get("replay")
        return self.stream, replay if isinstance(replay, str) else None

    @property
    def activity(self) -> Activity | None:
        """What is going on with it; None once it has ended."""
        return activity_of(self.state, holds=self.holds, task=self.task)

    @property
    def timed_steps(self) -> list[tuple[Row, timedelta | None]]:
        """Its steps with what each took: since the step before, or the claim, of its attempt."""
        since = dict(self.begun)
        timed: list[tuple[Row, timedelta | None]] = []
        for row in self.steps:
            before = since.get(row.attempt)
            timed.append((row, None if before is None else row.at - before))
            since[row.attempt] = row.at
        return timed

    @property
    def deeds(self) -> list[Deed]:
        """Who has started it, and decided about it."""
        return list(deeds(self.steps))

    @property
    def made_by(self) -> MadeBy | None:
        """Who has its newest attempt made, or the publish of that; None if it is not known."""
        makers = [row.made_by for row in self.steps if row.attempt == self.steps[-1].attempt]
        return next((by for by in reversed(makers) if by is not None), None)

    @property
    def error(self) -> Json:
        """Code, message and hint of the failure that ended it; empty for none."""
        return self.steps[-1].error if self.steps else {}


def list_runs(lake: Lake, *, claimed: bool = False, **equal: object) -> list[RunView]:
    """Runs whose rows have these column values, the newest first.

    Runs that have only a claim are included if `claimed`.
    """
    histories = read_histories(lake, **equal)
    active = claims.active(lake) if histories or claimed else []
    held = {claim.run: claim for claim in active}
    views = [_view(history, held.get(run)) for run, history in histories.items()]
    views += _claimed(active, histories) if claimed else []
    return sorted(views, key=lambda view: view.at, reverse=True)


def list_claimed(lake: Lake) -> list[RunView]:
    """Runs that have only a claim."""
    active = claims.active(lake)
    names = tuple({claim.run for claim in active})
    begun = read_rows(lake, "runs", ("run",), run=names) if names else []
    return _claimed(active, {row["run"] for row in begun})


def _claimed(active: Collection[Claim], begun: Collection[str]) -> list[RunView]:
    newest = {claim.run: claim for claim in active if claim.run not in begun}
    return [
        RunView(
            run=run,
            stream=claim.stream,
            target=claim.scope.target,
            state=CLAIMED,
            holds=True,
            attempts=claim.attempt,
            at=claim.at,
            claim=claim,
        )
        for run, claim in newest.items()
    ]


def view_run(lake: Lake, run: str) -> RunView:
    """One run."""
    named = _RUN.fullmatch(run) is not None
    views = list_runs(lake, run=run) if named else []
    views = views or [view for view in list_claimed(lake) if named and view.run == run]
    if not views:
        raise InvalidRequestError(
            "CAP-RUN", f"there is no run {run[:80]!r}", "see `capstan runs`", run=run
        )
    claimed = read_rows(lake, "claims", ("attempt", "at"), run=run, kind="claim")
    # A renewal is a later claim of the same attempt.
    begun = {row["attempt"]: row["at"] for row in reversed(claimed)}
    return replace(views[0], found=_findings(lake, run), begun=begun)


def _findings(lake: Lake, run: str) -> tuple[FindingsView, ...]:
    when = itemgetter("at")
    rows = sorted(read_rows(lake, "findings", run=run), key=when, reverse=True)
    parts = [tuple(map(_parsed, part)) for _, part in groupby(rows, when)]
    return tuple(
        FindingsView(part[0]["at"], part[0]["audit"], part[0]["target_version"], part)
        for part in parts
    )


def _parsed(row: LedgerRow) -> LedgerRow:
    texts = {name: row[name] for name in ("expected", "actual") if row.get(name) is not None}
    return {**row, **{name: json.loads(str(text)) for name, text in texts.items()}}


def _view(history: History, claim: Claim | None) -> RunView:
    last, intent = history.last, history.effective_intent or history.first_intent
    request = intent.detail.get("request") if intent else None
    draft = intent.certificate if intent and intent.detail.get("certificate") else None
    certificate = history.certificate or draft
    audited = next((row for row in reversed(history.rows) if row.step is Step.AUDITED), None)
    return RunView(
        run=last.run,
        stream=last.stream,
        target=last.target,
        state=history.state(holds=claim is not None),
        holds=claim is not None,
        claim=claim,
        attempts=history.attempts,
        at=last.at,
        certificate=certificate,
        published=history.done is not None,
        audit=_audit(history),
        difference=(audited and audited.detail.get("diff")) or {},
        request=request or {},
        steps=history.rows,
    )


def _audit(history: History) -> Json:
    """The newest audit: of the certificate, of the staged rows, or of a failed attempt."""
    if history.certificate is not None:
        return history.certificate.audit or {}
    for row in reversed(history.rows):
        if row.step is Step.AUDITED:
            return row.detail.get("audit") or {}
        if row.step is Step.FAILED and row.detail.get("error") in _AUDITS:
            return {"passed": False, **row.error}
    return {}
