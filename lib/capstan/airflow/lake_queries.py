"""What tasks ask of the lake without a JVM. Imported only by tasks that run: it is not light."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from capstan.airflow.settings import Settings
from capstan.capture import stall_check
from capstan.core.config import Replay
from capstan.core.config.names import check_target, did_you_mean, one_of
from capstan.core.config.validation import read_model
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan, make_plan, target_path
from capstan.replay.planning.request import Request
from capstan.replay.preview import Preview, preview
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import claims, coverage
from capstan.storage.ledger.run_identity import are_of_one, short_name
from capstan.storage.ledger.runs import name_run
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape import index as summary
from capstan.storage.tape.tape import open_tape

OWN_FIELDS = ("dry_run", "diff", "wait")
"""Fields of forms that tasks follow themselves; the rest are those of a request."""


def read_request(fields: Mapping[str, object]) -> Request:
    """The request that a form or a schedule makes; empty text and empty lists are nothing.

    Raises:
        InvalidRequestError: `CAP-REQUEST` for a key that a request does not have, or a wrong value.
    """
    known = list(Request.__dataclass_fields__)
    for key in fields:
        if key not in (*known, *OWN_FIELDS):
            problem = f"a replay has no {key[:80]!r}{did_you_mean(key, known)}"
            raise InvalidRequestError("CAP-REQUEST", problem, f"it has {one_of(known)}", key=key)
    given = {
        key: value
        for key, value in fields.items()
        if key in known and value not in (None, "", [], ())
    }
    return read_model(Request, given, "CAP-REQUEST")


def resolve(setting: Settings, fields: Mapping[str, object]) -> Request:
    """The request that a form or a schedule makes; of a declared replay, as that is declared.

    What a run of a declared replay leaves empty of workers, transform, pipeline, sink and keys is
    the replay's own. Where it follows, so does a run that asks for no times of its own; others
    repair a part. Into a table of which a declared replay has to be approved, every run has to be,
    whether it is one of that replay's or not.

    Raises:
        InvalidRequestError: As `read_request`; `CAP-REPLAY` for a replay that is not declared;
            `CAP-REQUEST` where the fields say otherwise than the declaration.
    """
    asked = read_request(fields)
    if not asked.approve and approving(setting, asked.into) is not None:
        asked = replace(asked, approve=True)
    if asked.replay is None:
        return asked
    declared = setting.declarations.replay(asked.replay)
    request = replace(
        asked,
        workers=asked.workers or declared.workers,
        transform=asked.transform or declared.transform,
        pipeline=asked.pipeline or declared.pipeline,
        sink=asked.sink or declared.sink,
        keys=asked.keys or declared.keys,
    )
    times = (asked.since, asked.until, asked.known_at, asked.as_of)
    if declared.follow is not None and all(each is None for each in times) and not asked.partial:
        request = replace(request, follow=asked.follow or declared.follow, since=since_of(declared))
    own = {"stream": declared.stream, "into": declared.target, "transform": declared.transform,
           "pipeline": declared.pipeline, "sink": declared.sink, "mode": declared.mode,
           "keys": declared.keys,
           "follow": declared.follow if request.follow else None}  # fmt: skip
    for name, value in own.items():
        given = getattr(request, name)
        if given != value:
            raise InvalidRequestError(
                "CAP-REQUEST",
                f"replay {declared.name} has {name} {_told(value)}, not {_told(given)}",
                "leave it as declared, or choose no declared replay",
                key=name,
            )
    return request


def approving(setting: Settings, into: str) -> Replay | None:
    """The declared replay by which a person decides on what is put into a target, if any does.

    Raises:
        InvalidRequestError: `CAP-NAME` for what can be no target.
    """
    lake, declared = Lake.at(setting.lake), setting.declarations
    approved = [each for each in declared.replays.values() if each.approve]
    if not approved:
        return None
    path = target_path(lake, declared, check_target(into))[0]
    return next((r for r in approved if target_path(lake, declared, r.target)[0] == path), None)


def since_of(replay: Replay) -> str | None:
    """The first time that a declared replay plays, as a request says it."""
    since = replay.since
    return since.isoformat() if isinstance(since, datetime) else _text(since)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _told(value: object) -> str:
    """A value of a field in a message."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def look(setting: Settings, fields: Mapping[str, object]) -> Plan | None:
    """The plan of a request, as far as the index tells it; None while nothing is on tape.

    Raises:
        InvalidRequestError: The request cannot be meant; see `make_plan`.
    """
    lake, request = Lake.at(setting.lake), resolve(setting, fields)
    declared = request.stream in setting.declarations.streams
    if declared and not is_table(lake.stream(request.stream).events):
        return None
    return make_plan(lake, setting.declarations, request)


def foresee(setting: Settings, request: Request) -> Preview:
    """What a replay would do.

    Raises:
        InvalidRequestError: The request cannot be meant; see `preview`.
    """
    lake = Lake.at(setting.lake)
    lake.require()
    return preview(lake, setting.declarations, request)


def pinned(found: Preview) -> Request:
    """The request of a preview, at the cut that it saw."""
    request = found.plan.request
    return request if request.follow else replace(request, as_of=found.plan.cut.commit)


def begun(setting: Settings, request: Request, kept: object) -> Request | None:
    """What an earlier try had pinned (`kept`), if `request` is the same and that holds its range.

    An app that was killed keeps its claim. Only the next attempt of its own run may take that
    over, and it is the same run only at the same cut.
    """
    if not isinstance(kept, Mapping):
        return None
    earlier = Request.from_json(kept)
    if replace(earlier, as_of=request.as_of) != request:
        return None
    lake = Lake.at(setting.lake)
    plan = make_plan(lake, setting.declarations, earlier)
    name = name_run(lake, plan.identity, 1, plan.target).name
    holds = any(are_of_one(claim.run, name) for claim in claims.active(lake, plan.target))
    return earlier if holds else None


def require_moving(setting: Settings, stream: str) -> None:
    """Check that a stream's frontier moves, where it is declared how long it may stand.

    Raises:
        CheckFailedError: `CAP-STALLED`.
    """
    declared = setting.declarations.streams.get(stream)
    if declared is not None and declared.stalled_after is not None:
        tape = open_tape(Lake.at(setting.lake), stream)
        stall_check.require_moving(declared, tape, datetime.now(UTC))


def taped(setting: Settings, streams: Iterable[str]) -> list[str]:
    """Those of the streams of which something is on tape, in their order."""
    lake = Lake.at(setting.lake)
    return [name for name in streams if is_table(lake.stream(name).events)]


def labels_of(setting: Settings, stream: str) -> list[str]:
    """The labels of a stream's workers, by number."""
    tape = open_tape(Lake.at(setting.lake), stream)
    return list(summary.worker_labels(tape, summary.find_cut(tape, None)).values())


@dataclass(frozen=True, slots=True)
class Auditable:
    """What stands in targets.

    Attributes:
        audits: Audits to make: `run` and `version`, by table, the newest publish of each first.
        left_out: Runs that stand as well, and are more than were asked for of a table.
    """

    audits: tuple[dict[str, object], ...]
    left_out: tuple[str, ...]


def auditable(
    setting: Settings, target: str | None, runs: list[str] | None, newest: int | None
) -> Auditable:
    """What stands in targets, as audits to make.

    Where a later run has written over part of what a run published, its own version is audited;
    elsewhere the table as it is now.

    Args:
        setting: Where Capstan works.
        target: A table of the lake or a declared target; None for all.
        runs: Runs by name; None for all.
        newest: How many of each table, the newest; None for all.

    Raises:
        InvalidRequestError: `CAP-TARGET` for a target into which nothing was ever published, and
            that is not declared; `CAP-RUN` for a run that does not stand.
    """
    lake = Lake.at(setting.lake)
    paths = {str(row["target"]) for row in read_rows(lake, "coverage", ("target",))}
    if target:
        path, declared = target_path(lake, setting.declarations, target)
        if declared is None and path not in paths:
            known = [*setting.declarations.targets, *map(short_name, paths)]
            raise InvalidRequestError(
                "CAP-TARGET",
                f"no replay has published into {target[:80]!r}{did_you_mean(target, known)}",
                "see `capstan runs`, or the page's *Tables*",
                target=target,
            )
        paths &= {path}
    found = {path: _audits_of(lake, path) for path in sorted(paths)}
    known = [run for each in found.values() for run in each]
    for run in runs or ():
        if run not in known:
            raise InvalidRequestError(
                "CAP-RUN",
                f"run {run[:80]!r} has published nothing that stands{did_you_mean(run, known)}",
                "see `capstan runs`",
                run=run,
            )
    audits: list[dict[str, object]] = []
    left_out: list[str] = []
    for each in found.values():
        chosen = [run for run in each if not runs or run in runs]
        audits += [{"run": run, "version": each[run]} for run in chosen[:newest]]
        left_out += chosen[newest:] if newest is not None else []
    return Auditable(tuple(audits), tuple(left_out))


def against(setting: Settings, params: Mapping[str, object]) -> dict[str, object]:
    """The request of an audit of a table against a stream, as a form asks for it.

    Raises:
        InvalidRequestError: `CAP-REQUEST` where the form asks for runs as well, or names no table;
            see `plan_against`.
        IncompleteError: `CAP-INCOMPLETE`.
    """
    # It loads Spark's packages, which nothing else here needs.
    from capstan.replay.standalone_audit import TableAudit, plan_against

    if params.get("runs") or not params.get("target"):
        problem = "a stream is held against one table, and not against runs"
        raise InvalidRequestError("CAP-REQUEST", problem, "name the table as target, and no runs")
    named = ("stream", "worker_column", "time_column", "columns", "version")
    request = {name: params[name] for name in named if params.get(name) not in (None, "", [])}
    request["table"] = params["target"]
    asked = read_model(TableAudit, request, "CAP-REQUEST")
    plan_against(Lake.at(setting.lake), setting.declarations, asked)
    return request


def _audits_of(lake: Lake, path: str) -> dict[str, int | None]:
    """By run that stands in a target, the newest first, the version that is to be audited."""
    standing = coverage.standing(lake, path)
    return {
        each.run: each.target_version
        if any(later.scope.meets(each.scope) for later in standing[index + 1 :])
        else None
        for index, each in reversed(list(enumerate(standing)))
    }
