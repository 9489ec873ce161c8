"""Queries of the lake by tasks, without a JVM. Slow to import: only running tasks do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from capstan.airflow.settings import Settings
from capstan.capture.synthetic import stall_check
from capstan.core.config import Replay, check_name, joined_streams, parse_streams, split_streams
from capstan.core.config.loading.validation import read_model
from capstan.core.config.loading.validation import read_request as checked_request
from capstan.core.config.names import check_target, did_you_mean, is_catalog_name
from capstan.core.config.request_fields import GivenFields
from capstan.core.config.stream_names import check_streams
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request, with_stream
from capstan.replay.planning.requested import require_declared_part
from capstan.replay.planning.target_places import require_below_roots, target_path
from capstan.replay.preview import Preview, preview
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import claims, coverage
from capstan.storage.ledger.run_identity import have_same_identity, short_name
from capstan.storage.ledger.runs import name_run
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape import index
from capstan.storage.tape.tape import open_tape

OWN_FIELDS = ("dry_run", "diff", "wait")
"""Form fields that control the task itself; the others are fields of a request."""


def read_request(fields: GivenFields) -> Request:
    """The request of a form, an operator or a schedule; None is not given."""
    given = with_stream({key: value for key, value in fields.items() if value is not None})
    own = {key: value for key, value in given.items() if key not in OWN_FIELDS}
    return checked_request(Request, own)


def resolve(settings: Settings, fields: GivenFields, *, bound: bool = False) -> Request:
    """The request of a form or a schedule, completed from the declared replay that it names.

    If a declared replay into a table requires approval, every run into that table does, whatever
    replay it belongs to. See `Replay.complete` for the fields. A target that is `bound` has to be
    below one of the declared roots.
    """
    given = read_request(_with_declared(settings, _with_streams(settings, fields)))
    if bound:
        require_below_roots(Lake.at(settings.lake), settings.declarations, given.into)
    if not given.approve and approving_replay(settings, given.into) is not None:
        given = replace(given, approve=True)
    if given.replay is None:
        return given
    return settings.declarations.replay(given.replay).complete(given)


def _with_declared(settings: Settings, fields: GivenFields) -> GivenFields:
    """The fields of a form, with the stream, target and mode of the declared replay that it names.

    The declared values of its other fields, `Replay.complete` fills in.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    name = given.get("replay")
    if name is not None:
        declared = settings.declarations.replay(check_name("replay", str(name)))
        usual = {"into": declared.target, "mode": str(declared.mode)}
        if "streams" not in given:
            usual["stream"] = declared.stream
        return {**usual, **given}
    for key, what in (("stream", "stream"), ("into", "target")):
        if key not in given and (key != "stream" or "streams" not in given):
            raise InvalidRequestError(
                "CAP-REQUEST",
                f"neither a {what} nor a declared replay is chosen",
                f"choose a {what}, or a declared replay, which has one",
                key=key,
            )
    return given


def _with_streams(settings: Settings, fields: GivenFields) -> GivenFields:
    """The fields of a form, with its streams by key, or those of the declared replay that it names.

    The field `stream` does not count beside streams that are given, and is any of those that are
    declared.
    """
    keyed = streams_of(fields)
    if keyed:
        fields = {**fields, "stream": joined_streams(keyed), "streams": keyed}
    name = fields.get("replay")
    declared = settings.declarations.replays.get(str(name)) if name else None
    if declared is None or not declared.streams:
        return fields
    if fields.get("streams") not in (None, {}, declared.keyed):
        return fields
    if fields.get("stream") not in (None, declared.stream, *declared.inputs):
        return fields
    defaults = {"pipeline": declared.pipeline, "sink": declared.sink}
    given = {
        key: value for key, value in fields.items() if value is not None or key not in defaults
    }
    streams = {"stream": declared.stream, "streams": declared.keyed}
    return {**defaults, **given, **streams}


def streams_of(fields: GivenFields) -> dict[str, str]:
    """The streams by key that a form names as text; empty if it names none."""
    text = fields.get("streams")
    if not isinstance(text, str) or not text.strip():
        return {}
    keyed = parse_streams(text)
    if not keyed:
        raise InvalidRequestError(
            "CAP-STREAMS",
            f"streams {text.strip()[:80]!r} names no source",
            "give each source of the pipeline with its stream, as in "
            "orders=orders_eu,payments=payments; or leave it out, and choose one stream",
        )
    check_streams(keyed)
    return keyed


def approving_replay(settings: Settings, into: str) -> Replay | None:
    """The declared replay into a target that requires approval, best that of others, if any."""
    # A table whose place is not known yet, as nobody has declared its name in a catalog, may be
    # that of any of them.
    lake, declared = Lake.at(settings.lake), settings.declarations
    approved = [replay for replay in declared.replays.values() if replay.approve]
    approved.sort(key=lambda replay: replay.approve != "others")
    if not approved:
        return None
    path = target_path(lake, declared, check_target(into))[0]
    if is_catalog_name(into) and path == lake.table(into) and not is_table(path):
        return approved[0]
    return next((r for r in approved if target_path(lake, declared, r.target)[0] == path), None)


def plan_request(settings: Settings, fields: GivenFields) -> Plan | None:
    """The plan of a form's or schedule's request; None while nothing is on tape."""
    lake, request = Lake.at(settings.lake), resolve(settings, fields)
    for name in split_streams(request.stream):
        declared = name in settings.declarations.streams
        if declared and not is_table(lake.stream(name).events):
            return None
    return make_plan(lake, settings.declarations, request)


def preview_request(settings: Settings, request: Request) -> Preview:
    """The preview of a replay."""
    lake = Lake.at(settings.lake)
    lake.require()
    previewed = preview(lake, settings.declarations, request)
    if request.replay is not None:
        plan, declared = previewed.plan, settings.declarations.replay(request.replay)
        require_declared_part(plan.inputs, plan.box, plan.request, declared)
    return previewed


def interrupted_request(
    settings: Settings, request: Request, saved: object, *, pending: bool = False
) -> Request | None:
    """The request that an earlier try saved, if it equals `request` and its run still has a claim.

    If it is pending, its driver is at work, or has left a result that no try has taken.

    A job that was killed keeps its claim. Only the next attempt of its own run can take over the
    claim, and it is the same run only at the same cut.
    """
    if not isinstance(saved, Mapping):
        return None
    earlier = Request.from_json(saved)
    pinned = {"as_of": request.as_of, "cuts": request.cuts, "lookups": request.lookups}
    if replace(earlier, **pinned) != request:  # type: ignore[arg-type]
        return None
    if pending:
        return earlier
    lake = Lake.at(settings.lake)
    plan = make_plan(lake, settings.declarations, earlier)
    name = name_run(lake, plan.identity, 1, plan.target).name
    holds = any(have_same_identity(claim.run, name) for claim in claims.active(lake, plan.target))
    return earlier if holds else None


def require_moving(settings: Settings, stream: str) -> None:
    """Check that a stream's frontier moves, if the stream declares `stalled_after`."""
    declared = settings.declarations.streams.get(stream)
    if declared is not None and declared.stalled_after is not None:
        tape = open_tape(Lake.at(settings.lake), stream)
        stall_check.require_moving(declared, tape, datetime.now(UTC))


def captured_streams(settings: Settings, streams: Iterable[str]) -> list[str]:
    """The streams, of those given and in their order, that are on tape."""
    lake = Lake.at(settings.lake)
    return [name for name in streams if is_table(lake.stream(name).events)]


def worker_labels(settings: Settings, stream: str) -> list[str]:
    """The labels of a stream's workers, ordered by number."""
    tape = open_tape(Lake.at(settings.lake), stream, stamps=True)
    return list(index.worker_labels(tape, index.find_cut(tape, None)).values())


@dataclass(frozen=True, slots=True)
class AuditList:
    """The audits to make by table, newest publish first; `left_out` runs were beyond the limit."""

    audits: tuple[dict[str, object], ...]
    left_out: tuple[str, ...]


def list_audits(
    settings: Settings, target: str | None, runs: list[str] | None, newest: int | None
) -> AuditList:
    """List audits of published runs.

    If a later run overwrote part of a run's rows, the version that the run wrote is audited;
    otherwise the table as it is now.
    """
    lake = Lake.at(settings.lake)
    paths = {str(row["target"]) for row in read_rows(lake, "coverage", ("target",))}
    if target:
        path, declared = target_path(lake, settings.declarations, target)
        if declared is None and path not in paths:
            known = [*settings.declarations.targets, *map(short_name, paths)]
            raise InvalidRequestError(
                "CAP-TARGET",
                f"no replay has published into {target[:80]!r}{did_you_mean(target, known)}",
                "see `capstan runs`, or the page's *Tables*",
                target=target,
            )
        paths &= {path}
    versions = {path: _audit_versions(lake, path) for path in sorted(paths)}
    known = [run for by_run in versions.values() for run in by_run]
    for run in runs or ():
        if run not in known:
            raise InvalidRequestError(
                "CAP-RUN",
                f"run {run[:80]!r} has no published rows{did_you_mean(run, known)}",
                "see `capstan runs`",
                run=run,
            )
    audits: list[dict[str, object]] = []
    left_out: list[str] = []
    for by_run in versions.values():
        chosen = [run for run in by_run if not runs or run in runs]
        audits += [{"run": run, "version": by_run[run]} for run in chosen[:newest]]
        left_out += chosen[newest:] if newest is not None else []
    return AuditList(tuple(audits), tuple(left_out))


def table_audit_request(settings: Settings, params: GivenFields) -> dict[str, object]:
    """The request of an audit of a table against a stream, from a form."""
    # Loads Spark's packages, which nothing else here needs.
    from capstan.replay.standalone_audit import TableAudit, plan_against

    if params.get("runs") or not params.get("target"):
        problem = "a stream is compared with one table, not with runs"
        raise InvalidRequestError("CAP-REQUEST", problem, "name the table as target, and no runs")
    fields = ("stream", "worker_column", "time_column", "columns", "version")
    request = {name: params[name] for name in fields if params.get(name) not in (None, "", [])}
    request["table"] = params["target"]
    audit = read_model(TableAudit, request, "CAP-REQUEST")
    lake = Lake.at(settings.lake)
    require_below_roots(lake, settings.declarations, audit.table)
    plan_against(lake, settings.declarations, audit)
    return request


def _audit_versions(lake: Lake, path: str) -> dict[str, int | None]:
    """The version to audit of each published run in a target, newest run first."""
    published = coverage.current(lake, path)
    return {
        run.run: run.target_version
        if any(later.scope.overlaps(run.scope) for later in published[position + 1 :])
        else None
        for position, run in reversed(list(enumerate(published)))
    }
