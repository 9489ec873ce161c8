"""Ledgers of thousands of runs, written in one commit each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from capstan.core.times.region import Region
from capstan.storage.ledger.region_json import region_text
from tests.support.jvmless_lake import Books

_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


def publish_all(
    books: Books,
    runs: Mapping[str, tuple[Sequence[int], Region]],
    *,
    certificate: Mapping[str, object] | None = None,
    identity: str | None = None,
) -> None:
    """Write published runs, each a second after the previous one.

    Args:
        books: Lake, stream and target of the runs.
        runs: Workers and times of each run.
        certificate: Fields of the certificates beyond those that Capstan needs.
        identity: Common identity, of which each run is a generation; else each has its own.
    """
    claims: list[Mapping[str, object]] = []
    steps: list[Mapping[str, object]] = []
    covered: list[Mapping[str, object]] = []
    more = dict(certificate or {})
    for number, (run, (workers, region)) in enumerate(runs.items(), 1):
        at, text = _BEGIN + timedelta(seconds=number), region_text(region)
        generation = 1 if identity is None else number
        common = {"run": run, "stream": books.stream, "target": books.target, "at": at}
        claim = {"claim": number, "kind": "claim", "attempt": 1, "workers": list(workers)}
        claims.append({**common, **claim, "region": text, "expires": at + timedelta(hours=12)})
        intent = {"region": text, "request": {"mode": "replace"}, "certificate": more}
        done = {**more, "attempt": 1, "target_version": number}
        attempt = {"identity": identity or run, "generation": generation, "attempt": 1}
        for step, detail in (("intent", intent), ("done", done)):
            steps.append({**common, **attempt, "step": step, "detail": json.dumps(detail)})
        kept = {
            "region": text, "generation": generation, "transform": books.transform,
            "code": books.code, "cut": 0, "target_version": number, "state": "published",
        }  # fmt: skip
        covered += [{**common, **kept, "worker": worker} for worker in workers]
    for ledger, rows in (("claims", claims), ("runs", steps), ("coverage", covered)):
        books.append(ledger, *rows)
