"""The Python API: a lake, its declarations and a Spark session, with the verbs as methods.

    import capstan

    ctx = capstan.Context("./lake", config="dags/streams.yaml")
    ctx.capture("flights")
    ctx.verify("flights").raise_for_violations()
    run = ctx.replay("flights", into="march", workers=["EWR"], since="2013-03-01")
    run.certificate.records, run.to_arrow()

Verbs that read ledgers and indexes alone need no JVM. The first verb that needs one starts Spark,
or takes the session that was given or that this process has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from capstan.api.notebook import shown
from capstan.api.workplace import Workplace
from capstan.errors import InvalidRequestError
from capstan.errors.translation import translating

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from capstan.api.listing import Listing
    from capstan.api.replay_options import ReplayOptions
    from capstan.backfill.planner import BackfillRequest
    from capstan.backfill.run import BackfillResult
    from capstan.backfill.survey import Survey
    from capstan.capture.run import CaptureResult
    from capstan.maintenance.run import MaintenanceResult
    from capstan.replay.execution.approval import Decision
    from capstan.replay.planning.request import Request
    from capstan.replay.preview import Preview
    from capstan.replay.result import ReplayResult
    from capstan.replay.standalone_audit import AuditReport, TableAudit
    from capstan.verify import Verification

_Model = TypeVar("_Model")


@translating
class Context(Workplace):
    """A lake with its declarations, and the verbs that work on it.

    Can be used as a context manager: a session that it has started ends with the block.
    """

    def streams(self) -> Listing:
        """The streams, on tape or declared only, by name; no JVM."""
        from capstan.api.listing import Listing
        from capstan.reporting import listings

        columns = ("stream", "captured", "cut", "workers", "events", "records", "late", "frontier")
        rows = listings.stream_rows(self.lake, self.declarations)
        return shown(Listing(f"Streams of {self.lake.root}", columns, tuple(rows)))

    def runs(self, *, target: str | None = None, stream: str | None = None) -> Listing:
        """The runs, the newest first; no JVM.

        Args:
            target: Only runs into this target.
            stream: Only runs of this stream.
        """
        from capstan.api.listing import Listing
        from capstan.reporting import listings

        columns = ("run", "stream", "target", "state", "records", "since", "until", "version", "at")
        rows = listings.run_rows(self.lake, self.declarations, target, stream)
        return shown(Listing(f"Runs of {self.lake.root}", columns, tuple(rows)))

    def capture(
        self,
        stream: str,
        *,
        frame: DataFrame | None = None,
        reseat: bool = False,
        rescale: int | None = None,
    ) -> CaptureResult:
        """Record what has arrived of a declared stream.

        Args:
            stream: The stream.
            frame: A streaming DataFrame of yours to record, for a stream that is declared with
                `source: {format: query}`.
            reseat: Go on with a source or a checkpoint that was replaced.
            rescale: Give the stream this many workers first.

        Raises:
            InvalidRequestError: `CAP-STREAM` and others; see `capstan.capture.run.capture`.
        """
        from capstan.capture.run import capture

        config = self.declared(required=True)
        source = config.stream(stream)
        with self.session(config) as spark:
            return shown(
                capture(spark, self.lake, source, frame=frame, reseat=reseat, rescale=rescale)
            )

    def verify(
        self,
        stream: str,
        *,
        workers: Sequence[str] | str | None = None,
        as_of: int | None = None,
        deep: bool = False,
    ) -> Verification:
        """Check that the recordings of a stream follow the protocol.

        Args:
            stream: The stream.
            workers: Labels or numbers; None for all.
            as_of: The commit to verify up to; None for the newest.
            deep: Also compare each record with its event.
        """
        from capstan.core.config.loading.validation import read_field
        from capstan.core.config.request_fields import Names
        from capstan.storage.tape.index import find_cut
        from capstan.storage.tape.tape import open_tape
        from capstan.storage.tape.worker_choice import resolve_workers
        from capstan.verify import verify

        tape = open_tape(self.lake, stream, stamps=True)
        cut = find_cut(tape, as_of)
        named = None if workers is None else read_field("workers", Names, workers)
        chosen = None if named is None else tuple(resolve_workers(tape, cut, named))
        with self.later() as session:
            return shown(verify(session, self.lake, tape, workers=chosen, cut=cut, deep=deep))

    def plan(
        self,
        stream: str | Mapping[str, str | Sequence[str]] | Request,
        into: str | None = None,
        *,
        compare: bool = False,
        **fields: Unpack[ReplayOptions],
    ) -> Preview:
        """What a replay would read and write; no JVM unless the target is compared.

        Args:
            stream: The stream; several by the source of the pipeline that reads them, one or a
                list for each; or a whole request.
            into: A table of the lake or of a catalog, a declared target, or a Delta path.
            compare: Also count the rows that it would add, remove and change.
            fields: The other fields of `capstan.ReplayRequest`, such as `workers` and `since`.
        """
        from capstan.replay.preview import preview

        config = self.declarations
        request = _replay_request(stream, into, fields)
        with self.later(config) as session:
            found = preview(self.lake, config, request, session)
            if not compare:
                return shown(found)
            from capstan.replay.publish.diff import difference

            return shown(replace(found, comparison=difference(session(), found.plan)))

    def replay(
        self,
        what: str | Mapping[str, str | Sequence[str]] | Request | Preview,
        into: str | None = None,
        **fields: Unpack[ReplayOptions],
    ) -> ReplayResult:
        """Replay chosen workers and times into a table: verified, staged, audited, published.

        The same replay again changes nothing while its result stands.

        Args:
            what: A stream; several by the source of the pipeline that reads them, one or a list
                for each; a whole request; or a plan, which is carried out at the commits that it
                has seen.
            into: A table of the lake or of a catalog, a declared target, or a Delta path.
            fields: The other fields of `capstan.ReplayRequest`, such as `workers` and `since`.

        Raises:
            CapstanError: See `capstan.replay.run.replay`.
        """
        from capstan.replay.planning.plan import request_at_cuts
        from capstan.replay.preview import Preview
        from capstan.replay.run import replay

        if isinstance(what, Preview):
            if into is not None or fields:
                raise InvalidRequestError(
                    "CAP-REQUEST",
                    "a plan already has all fields of its replay",
                    "plan again with these fields",
                )
            request = request_at_cuts(what.plan)
        else:
            request = _replay_request(what, into, fields)
        config = self.declarations
        with self.later(config) as session:
            result = replay(session, self.lake, config, request)
            return shown(replace(result, session=session()))

    def audit(self, run: str, *, version: int | None = None, deep: bool = False) -> AuditReport:
        """Compare what a run published with what the stream says.

        Args:
            run: The run's name.
            version: The target's version; None for the newest.
            deep: Also where Spark has computed a pipeline over many records, compute all of its
                rows again in the engine.
        """
        from capstan.replay.standalone_audit import audit_run, require_auditable

        history = require_auditable(self.lake, run, version)
        config = self.declarations
        with self.session(config) as spark:
            return shown(audit_run(spark, self.lake, config, history, version, deep=deep))

    def audit_table(
        self, stream: str | TableAudit, table: str | None = None, **fields: Any
    ) -> AuditReport:
        """Compare any table that should hold a stream's rows with the stream.

        Args:
            stream: The stream; or a whole request.
            table: A table of the lake or of a catalog, a declared target, or a Delta path.
            fields: The other fields of `capstan.replay.standalone_audit.TableAudit`.
        """
        from capstan.replay.standalone_audit import TableAudit, audit_against, plan_against

        request = _request(TableAudit, "stream", stream, {"table": table, **fields})
        config = self.declarations
        with self.later(config) as session:
            plan = plan_against(self.lake, config, request, session)
            return shown(audit_against(session(), plan, request))

    def gaps(self, replay: str | BackfillRequest, **fields: Any) -> Survey:
        """Which intervals of a declared replay are done, missing, stale or changed; no JVM.

        Args:
            replay: The declared replay; or a whole request.
            fields: `since`, `until`, `every` and `as_of`, as `capstan gaps` takes them.
        """
        from capstan.backfill.planner import BackfillRequest, survey_range

        request = _request(BackfillRequest, "replay", replay, fields)
        config = self.declared(required=True)
        with self.later(config) as session:
            return shown(survey_range(self.lake, config, request, session))

    def backfill(self, replay: str | BackfillRequest, **fields: Any) -> BackfillResult:
        """Replay the missing intervals of a declared replay, run by run.

        Args:
            replay: The declared replay; or a whole request.
            fields: The other fields of `capstan.backfill.planner.BackfillRequest`, such as `since`,
                `chunk` and `dry_run`.

        Returns:
            The runs. One that has failed ends the backfill and is among them; see
            `BackfillResult.raise_for_errors`.
        """
        from capstan.backfill.planner import BackfillRequest
        from capstan.backfill.run import prepare, run_prepared

        request = _request(BackfillRequest, "replay", replay, fields)
        config = self.declared(required=True)
        with self.later(config) as session:
            prepared = prepare(self.lake, config, request, session)
            if request.dry_run or not prepared.replays:
                return shown(prepared)
            return shown(run_prepared(session(), self.lake, config, prepared))

    def publish(self, run: str, decision: Decision | None = None) -> ReplayResult:
        """Publish a run that waits after its audit.

        Args:
            run: The run's name.
            decision: Who approves it; None for a run that needs no approval.
        """
        from capstan.replay.run import publish

        config = self.declarations
        with self.session(config) as spark:
            return shown(replace(publish(spark, self.lake, config, run, decision), session=spark))

    def rollback(self, run: str) -> int:
        """Take back what a run published, and return the target's new version.

        Raises:
            CapstanError: See `capstan.replay.run.rollback`.
        """
        from capstan.replay.run import rollback

        config = self.declarations
        with self.session(config) as spark:
            return rollback(spark, self.lake, config, run)

    def maintain(self, *streams: str) -> MaintenanceResult:
        """Compact and clean up the tapes of streams, and the ledgers that all streams share.

        Args:
            streams: The streams; all of the lake when none is named.
        """
        from capstan.maintenance.run import maintain
        from capstan.storage.tape.tape import require_streams

        self.lake.require()
        chosen = list(streams) or self.lake.streams()
        require_streams(self.lake, chosen)
        with self.session() as spark:
            return shown(maintain(spark, self.lake, chosen))

    def table(self, name: str, *, version: int | None = None) -> DataFrame:
        """A target as a DataFrame.

        Args:
            name: A table of the lake or of a catalog, a declared target, or a Delta path.
            version: Its version; None for the newest.
        """
        from capstan.core.config import check_target
        from capstan.replay.planning.target_places import locate
        from capstan.storage.delta import delta

        config, into = self.declarations, check_target(name)
        with self.later(config) as session:
            path, _ = locate(session, self.lake, config, into)
        return delta.load(self.spark, path, version)


def _request(model: type[_Model], first: str, value: object, fields: dict[str, Any]) -> _Model:
    """A request of some fields; the first one may be a whole request in their place."""
    from capstan.core.config.loading.validation import read_request, reread

    given = {name: field for name, field in fields.items() if field is not None}
    if isinstance(value, model) and not given:
        return reread(value)
    return read_request(model, {first: value, **given})


def _replay_request(
    stream: str | Mapping[str, str | Sequence[str]] | Request,
    into: str | None,
    options: ReplayOptions,
) -> Request:
    from capstan.replay.planning.request import Request, with_stream

    fields: dict[str, Any] = {**options}
    if isinstance(stream, Mapping):
        fields = dict(with_stream({**fields, "streams": stream}))
        stream = str(fields.pop("stream"))
    if into is None and not isinstance(stream, Request):
        raise InvalidRequestError("CAP-REQUEST", "a replay needs a target", "name it with `into`")
    return _request(Request, "stream", stream, {"into": into, **fields})
