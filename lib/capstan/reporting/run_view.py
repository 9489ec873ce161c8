"""Runs as a page shows them: what was asked, what came of it, what it does not cover."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.findings import read_findings
from capstan.storage.ledger.runs import History, Step, read_histories

_RUN = re.compile(r"[a-z0-9_]{1,40}-[0-9a-f]{8}-[1-9][0-9]{0,9}")
_AUDITS = frozenset({"CAP-AUDIT", "CAP-CHECK"})
"""Codes of a failed audit; the facts of the error are what it found."""
UNCOVERED = {
    "begun": "Everything: it has not published yet.",
    "stopped": "Everything: it was cut off. The same replay again finds out how far it came.",
    "audited": "Everything: it waits, and has not published yet.",
    "approved": "Everything: it is approved, and has not published yet.",
    "rejected": "Everything: it was rejected, and nothing of it stands.",
    "failed": "Everything: it failed, and nothing of it stands.",
    "rolled back": "Everything: what it had published was taken back.",
}
"""By the state of a run that covers nothing: that it does not, and why."""

_DECIDED = frozenset({"approved", "rejected"})


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of one attempt of a run.

    Attributes:
        attempt: Which attempt.
        step: Which step, as the ledger calls it.
        at: When it was written down.
        error: Code, message and hint of one that failed; empty for others.
        decision: Who has approved or rejected it, and why; empty for others.
    """

    attempt: int
    step: str
    at: datetime
    error: Mapping[str, object]
    decision: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class FoundView:
    """What one audit of a run has found wrong.

    Attributes:
        at: When it was written down.
        audit: The kind of the audit.
        target_version: The audited version; None of what was staged, or of the newest.
        rows: Differences and failed checks, a sample, with the totals of their kinds.
    """

    at: datetime
    audit: str
    target_version: int | None
    rows: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class RunView:
    """What a page shows of one run.

    Attributes:
        run: Its name.
        stream: The stream that was played.
        target: The target's path.
        state: As `History.state` has it.
        at: When its newest step was written down.
        certificate: The certificate; of a run that has not published, as far as it is known.
        published: Whether the certificate is one, and not a draft.
        audit: The audit, of what was published or is staged; empty where there was none.
        difference: What publishing would change, or would have changed, as it was shown to who
            decides of it; empty where nobody was asked.
        request: What was asked.
        steps: All its steps, in order.
        found: What its audits found wrong, the newest first; only of a run that was asked for
            alone.
    """

    run: str
    stream: str
    target: str
    state: str
    at: datetime
    certificate: Mapping[str, object]
    published: bool
    audit: Mapping[str, object]
    difference: Mapping[str, object]
    request: Mapping[str, object]
    steps: tuple[StepView, ...]
    found: tuple[FoundView, ...] = ()

    @property
    def error(self) -> Mapping[str, object]:
        """Code, message and hint of the failure that it ended with, if it did."""
        return self.steps[-1].error


def list_runs(lake: Lake, **equal: object) -> list[RunView]:
    """Runs whose rows have these column values, the newest first."""
    histories = read_histories(lake, **equal)
    # Claims only tell whether one that has begun is at work still.
    begun = any(each.state(holds=True) == "begun" for each in histories.values())
    holding = {claim.run for claim in claims.active(lake)} if begun else set()
    found = [_view(each, holds=run in holding) for run, each in histories.items()]
    return sorted(found, key=lambda each: each.at, reverse=True)


def view_run(lake: Lake, run: str) -> RunView:
    """One run.

    Raises:
        InvalidRequestError: `CAP-RUN` when the text names none, or there is none.
    """
    found = list_runs(lake, run=run) if _RUN.fullmatch(run) else []
    if not found:
        raise InvalidRequestError(
            "CAP-RUN", f"there is no run {run[:80]!r}", "see `capstan runs`", run=run
        )
    return replace(found[0], found=_found(lake, run))


def _found(lake: Lake, run: str) -> tuple[FoundView, ...]:
    rows = sorted(read_findings(lake, run=run), key=_when, reverse=True)
    return tuple(
        FoundView(at, str(part[0]["audit"]), _whole(part[0]["target_version"]), tuple(part))
        for at, part in ((at, [_parsed(row) for row in rows]) for at, rows in groupby(rows, _when))
    )


def _when(row: Mapping[str, object]) -> datetime:
    at = row["at"]
    assert isinstance(at, datetime)
    return at


def _parsed(row: Mapping[str, object]) -> Mapping[str, object]:
    texts = {name: row[name] for name in ("expected", "actual") if row.get(name) is not None}
    return {**row, **{name: json.loads(str(text)) for name, text in texts.items()}}


def _whole(value: object) -> int | None:
    return None if value is None else int(str(value))


def _view(history: History, *, holds: bool) -> RunView:
    last, intent = history.last, history.effective_intent or history.first_intent
    draft = intent.detail.get("certificate") if intent else None
    request = intent.detail.get("request") if intent else None
    certificate = _mapping(draft) if history.done is None else history.done.detail
    audited = next((row for row in reversed(history.rows) if row.step is Step.AUDITED), None)
    return RunView(
        run=last.run,
        stream=last.stream,
        target=last.target,
        state=history.state(holds=holds),
        at=last.at,
        certificate=certificate,
        published=history.done is not None,
        audit=_audit(history, certificate),
        difference=_mapping(audited.detail.get("diff")) if audited else {},
        request=_mapping(request),
        steps=tuple(
            StepView(
                row.attempt,
                str(row.step),
                row.at,
                row.error,
                row.detail if str(row.step) in _DECIDED else {},
            )
            for row in history.rows
        ),
    )


def _audit(history: History, certificate: Mapping[str, object]) -> Mapping[str, object]:
    """The newest audit: the certificate's, that of what is staged, or what a failed one found."""
    if history.done is not None:
        return _mapping(certificate.get("audit"))
    for row in reversed(history.rows):
        if row.step is Step.AUDITED:
            return _mapping(row.detail.get("audit"))
        if row.step is Step.FAILED and row.detail.get("error") in _AUDITS:
            return {"passed": False, **row.detail}
    return {}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
