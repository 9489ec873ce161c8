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

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from capstan.core.config import ProjectConfig, load_optional
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.capture.run import CaptureResult
    from capstan.maintenance.run import MaintenanceResult
    from capstan.results import (
        AuditReport,
        BackfillRun,
        CoverageSurvey,
        Listing,
        ReplayPlan,
        ReplayRun,
        StreamVerification,
    )

DEFAULT_LAKE = "./lake"


class Context:
    """A lake with its declarations, and the Spark session that works on it.

    Can be used as a context manager: a session that it has started ends with the block.
    """

    def __init__(
        self,
        lake: str | Path | None = None,
        *,
        config: str | Path | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Name the lake; nothing is opened yet.

        Args:
            lake: The lake's folder or URI; by default `CAPSTAN_LAKE`, or `./lake`.
            config: The declaration file; by default `CAPSTAN_STREAMS`, or `dags/streams.yaml`.
            spark: A session of the caller's, with Delta; its settings are not changed.
        """
        self.lake = Lake.at(str(lake or os.environ.get("CAPSTAN_LAKE") or DEFAULT_LAKE))
        self._config = Path(config) if config is not None else None
        self._given = spark
        self._session: SparkSession | None = None
        self._started = False

    def __repr__(self) -> str:
        return f"Context({self.lake.root!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the Spark session if this context has started it."""
        session, self._session = self._session, None
        if session is not None and self._started:
            session.stop()
        self._started = False

    @property
    def declarations(self) -> ProjectConfig:
        """What the declaration file declares; nothing when none was named and there is none.

        Raises:
            InvalidRequestError: `CAP-DECLARE` when the file cannot be read.
        """
        return self._declared(required=False)

    @property
    def spark(self) -> SparkSession:
        """The Spark session: the caller's with settings of its own, or one that is started now.

        Raises:
            SystemFailureError: `CAP-DELTA` for a session without Delta; `CAP-JAVA`, `CAP-JARS` or
                `CAP-SPARK` when none can be started.
            InvalidRequestError: `CAP-LAKE` for a lake where two concurrent commits could both win.
        """
        if self._session is None:
            from capstan.spark.guest_session import open_session

            self._session, self._started = open_session(self._given, self.lake.root)
        return self._session

    def streams(self) -> Listing:
        """The streams, on tape or declared only, by name; no JVM."""
        from capstan.reporting import listings
        from capstan.results import Listing

        columns = ("stream", "captured", "cut", "workers", "events", "records", "late", "frontier")
        rows = listings.stream_rows(self.lake, self.declarations)
        return Listing(f"Streams of {self.lake.root}", columns, tuple(rows))

    def runs(self, *, target: str | None = None, stream: str | None = None) -> Listing:
        """The runs, the newest first; no JVM.

        Args:
            target: Only runs into this target.
            stream: Only runs of this stream.
        """
        from capstan.reporting import listings
        from capstan.results import Listing

        columns = ("run", "stream", "target", "state", "records", "since", "until", "version", "at")
        rows = listings.run_rows(self.lake, self.declarations, target, stream)
        return Listing(f"Runs of {self.lake.root}", columns, tuple(rows))

    def capture(
        self, stream: str, *, reseat: bool = False, rescale: int | None = None
    ) -> CaptureResult:
        """Record what has arrived of a declared stream.

        Args:
            stream: The stream.
            reseat: Go on with a source or a checkpoint that was replaced.
            rescale: Give the stream this many workers first.

        Raises:
            InvalidRequestError: `CAP-STREAM` and others; see `capstan.capture.run.capture`.
        """
        from capstan.capture.run import capture

        declared = self._declared(required=True).stream(stream)
        with self._at_work() as spark:
            return capture(spark, self.lake, declared, reseat=reseat, rescale=rescale)

    def verify(
        self,
        stream: str,
        *,
        workers: Sequence[str] | None = None,
        as_of: int | None = None,
        deep: bool = False,
    ) -> StreamVerification:
        """Check that the recordings of a stream follow the protocol.

        Args:
            stream: The stream.
            workers: Labels or numbers; None for all.
            as_of: The commit to verify up to; None for the newest.
            deep: Also compare each record with its event.
        """
        from capstan.results import StreamVerification
        from capstan.storage.tape.index import find_cut, resolve_workers
        from capstan.storage.tape.tape import open_tape
        from capstan.verify import verify

        tape = open_tape(self.lake, stream)
        cut = find_cut(tape, as_of)
        chosen = None if workers is None else tuple(resolve_workers(tape, cut, tuple(workers)))
        with self._at_work() as spark:
            found = verify(spark, self.lake, tape, workers=chosen, cut=cut, deep=deep)
        return StreamVerification(found, tape)

    def plan(self, stream: str, into: str, *, compare: bool = False, **fields: Any) -> ReplayPlan:
        """What a replay would read and write; no JVM unless the target is compared.

        Args:
            stream: The stream.
            into: A table of the lake, a declared target, or a Delta path.
            compare: Also count the rows that it would add, remove and change.
            fields: The other fields of `capstan.ReplayRequest`, such as `workers` and `since`.
        """
        from capstan.replay.preview import preview
        from capstan.results import ReplayPlan

        request = _request({"stream": stream, "into": into, **fields})
        found = preview(self.lake, self.declarations, request)
        if not compare:
            return ReplayPlan(found)
        from capstan.replay.output.diff import difference

        with self._at_work() as spark:
            compared = difference(spark, found.plan).to_json(found.plan.tape.time_type)
        return ReplayPlan(found, compared)

    def replay(self, what: str | ReplayPlan, into: str | None = None, **fields: Any) -> ReplayRun:
        """Replay chosen workers and times into a table: verified, staged, audited, published.

        The same replay again changes nothing while its result stands.

        Args:
            what: A stream; or a plan, which is carried out at the commit that it has seen.
            into: A table of the lake, a declared target, or a Delta path.
            fields: The other fields of `capstan.ReplayRequest`, such as `workers` and `since`.

        Raises:
            CapstanError: See `capstan.replay.run.replay`.
        """
        from capstan.replay.planning.plan import make_plan
        from capstan.replay.run import replay
        from capstan.results import ReplayPlan, ReplayRun

        if isinstance(what, ReplayPlan):
            if into is not None or fields:
                raise InvalidRequestError(
                    "CAP-REQUEST", "a plan says all of a replay", "plan again with these fields"
                )
            plan = what.preview.plan
            pinned = plan.request.follow is not None
            request = plan.request if pinned else with_fields(plan.request, as_of=plan.cut.commit)
        else:
            request = _request({"stream": what, "into": into, **fields})
        declarations = self.declarations
        # What can be refused is refused before a JVM starts.
        make_plan(self.lake, declarations, request)
        with self._at_work() as spark:
            return ReplayRun(replay(spark, self.lake, declarations, request), spark)

    def audit(self, run: str, *, version: int | None = None) -> AuditReport:
        """Compare what a run published with what the stream says.

        Args:
            run: The run's name.
            version: The target's version; None for the newest.
        """
        from capstan.replay.standalone_audit import audit_run, require_auditable
        from capstan.results import AuditReport

        history = require_auditable(self.lake, run, version)
        declarations = self.declarations
        with self._at_work() as spark:
            plan, found = audit_run(spark, self.lake, declarations, history, version)
        subject = {
            "run": run,
            "stream": plan.tape.name,
            "cut": plan.cut.commit,
            "target": plan.request.into,
            "version": version,
        }
        return AuditReport(subject, found, plan.tape.time_type)

    def audit_table(self, stream: str, table: str, **fields: Any) -> AuditReport:
        """Compare any table that should hold a stream's rows with the stream.

        Args:
            stream: The stream.
            table: A table of the lake, a declared target, or a Delta path.
            fields: The other fields of `capstan.replay.standalone_audit.TableAudit`.
        """
        from capstan.core.config.validation import read_request
        from capstan.replay.standalone_audit import TableAudit, audit_against, plan_against
        from capstan.results import AuditReport

        values = {"stream": stream, "table": table, **fields}
        asked = read_request(TableAudit, values)
        plan = plan_against(self.lake, self.declarations, asked)
        with self._at_work() as spark:
            found = audit_against(spark, plan, asked)
        subject = {
            "stream": stream,
            "cut": plan.cut.commit,
            "target": table,
            "version": asked.version,
        }
        return AuditReport(subject, found, plan.tape.time_type)

    def gaps(self, replay: str, **fields: Any) -> CoverageSurvey:
        """Which intervals of a declared replay are done, missing, stale or changed; no JVM.

        Args:
            replay: The declared replay.
            fields: `since`, `until`, `every` and `as_of`, as `capstan gaps` takes them.
        """
        from capstan.backfill.planner import BackfillRequest, survey_range
        from capstan.core.config.validation import read_request
        from capstan.results import CoverageSurvey

        asked = read_request(BackfillRequest, {"replay": replay, **fields})
        return CoverageSurvey(survey_range(self.lake, self._declared(required=True), asked))

    def backfill(self, replay: str, **fields: Any) -> BackfillRun:
        """Replay the missing intervals of a declared replay, run by run.

        Args:
            replay: The declared replay.
            fields: The other fields of `capstan.backfill.planner.BackfillRequest`, such as `since`,
                `chunk` and `dry_run`.

        Returns:
            The runs. One that has failed ends the backfill and is among them; see
            `BackfillRun.raise_for_errors`.
        """
        from capstan.backfill.planner import BackfillRequest
        from capstan.backfill.run import prepare, run_prepared
        from capstan.core.config.validation import read_request
        from capstan.results import BackfillRun

        asked = read_request(BackfillRequest, {"replay": replay, **fields})
        declarations = self._declared(required=True)
        prepared = prepare(self.lake, declarations, asked)
        if asked.dry_run or not prepared.replays:
            return BackfillRun(prepared)
        with self._at_work() as spark:
            return BackfillRun(run_prepared(spark, self.lake, declarations, prepared))

    def publish(self, run: str) -> ReplayRun:
        """Publish a run that waits after its audit."""
        from capstan.replay.run import publish
        from capstan.results import ReplayRun

        declarations = self.declarations
        with self._at_work() as spark:
            return ReplayRun(publish(spark, self.lake, declarations, run), spark)

    def rollback(self, run: str) -> int:
        """Take back what a run published, and return the target's new version.

        Raises:
            CapstanError: See `capstan.replay.run.rollback`.
        """
        from capstan.replay.run import rollback

        declarations = self.declarations
        with self._at_work() as spark:
            return rollback(spark, self.lake, declarations, run)

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
        with self._at_work() as spark:
            return maintain(spark, self.lake, chosen)

    def table(self, name: str, *, version: int | None = None) -> DataFrame:
        """A target as a DataFrame.

        Args:
            name: A table of the lake, a declared target, or a Delta path.
            version: Its version; None for the newest.
        """
        from capstan.core.config import check_target
        from capstan.replay.planning.plan import target_path

        path = target_path(self.lake, self.declarations, check_target(name))[0]
        reader = self.spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(path)

    def _declared(self, *, required: bool) -> ProjectConfig:
        named = None if self._config is None else str(self._config)
        return load_optional(named, lake=self.lake.root, required=required)

    @contextmanager
    def _at_work(self) -> Iterator[SparkSession]:
        """The session for a verb: its log lines name the run, and `collect` converts in UTC."""
        from capstan.spark.code_archive import add_modules
        from capstan.spark.guest_session import in_utc
        from capstan.spark.session import marked

        session = self.spark
        add_modules(session, self.declarations.modules)
        with in_utc(), marked(session):
            yield session


def _request(fields: dict[str, Any]) -> Any:
    from capstan.core.config.validation import read_request
    from capstan.replay.planning.request import Request

    given = {key: value for key, value in fields.items() if value is not None}
    if "into" not in given:
        raise InvalidRequestError("CAP-REQUEST", "a replay needs a target", "name it with `into`")
    return read_request(Request, given)
