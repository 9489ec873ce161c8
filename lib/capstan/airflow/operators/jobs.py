"""Operators that submit one job: a capture, a backfill, an audit, a rollback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airflow.sdk import Context
from airflow.sdk.log import mask_secret

from capstan.airflow.assets import CAPTURED, REPLAYED, stream_asset
from capstan.airflow.connections import read_connection
from capstan.airflow.documents import rollback_document
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import TaskRefusedError, as_task, skip_following
from capstan.airflow.tasks.job_operator import keep_published, log_text, named_run
from capstan.airflow.tasks.links import RunLink, TargetLink
from capstan.airflow.tasks.partitions import require_partitions
from capstan.airflow.tasks.spark_program import inherited
from capstan.core.config import ProjectConfig
from capstan.core.config.loading.secret_references import (
    VARIABLE,
    Reference,
    references,
    unresolved,
)
from capstan.core.config.loading.validation import read_field, read_fields, read_request
from capstan.core.config.request_fields import GivenFields, Names
from capstan.core.json_object import Json
from capstan.errors import CapstanError

_FIELDS = ("host", "login", "password", "port", "schema")


class CaptureOperator(CapstanSubmitOperator):
    """Submits the capture of a stream, and saves its worker labels for forms.

    Runs of a DAG capture one after the other, unless `max_active_tis_per_dag` is given.

    If the frontier has stood still for longer than declared, the task fails after its job with
    `CAP-STALLED`, without a retry; what had arrived is on tape nevertheless.
    """

    job = "capture"
    template_fields = ("stream", *CapstanSubmitOperator.template_fields)

    def __init__(
        self, *, stream: str, reseat: bool = False, rescale: int | None = None, **rest: Any
    ) -> None:
        """Create a task that captures a declared stream.

        Args:
            stream: The stream. Templated.
            reseat: Continue with a source or checkpoint that was replaced.
            rescale: Give the stream this many workers first.
            rest: Arguments of a `CapstanSubmitOperator`, such as `lake` and `config`.
        """
        rest.setdefault("outlets", [CAPTURED if "{" in stream else stream_asset(stream)])
        rest.setdefault("max_active_tis_per_dag", 1)
        super().__init__(**rest)
        self.stream = stream
        options = {"reseat": reseat, "rescale": rescale}
        self._options = {name: value for name, value in options.items() if value}

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Capture, check that the frontier moves, and return the job's result."""
        from capstan.airflow.lake_queries import require_moving

        self.request = {"stream": self.stream, **self._options, **self._read_request()}
        with as_task():
            name, declarations = str(self.request["stream"]), self.settings.declarations
            declared = declarations.streams.get(name)
            if declared is not None and declared.partitions is not None:
                require_partitions(self, declared)
            secrets = _connection_values(declarations, name)
        with inherited({VARIABLE: json.dumps(secrets)} if secrets else {}):
            result = super().execute(context)
        try:
            with as_task():
                require_moving(self.settings, str(result.get("stream")))
        except TaskRefusedError:
            context["ti"].xcom_push(key="return_value", value=result)
            raise
        return result


def _connection_values(config: ProjectConfig, stream: str) -> Mapping[str, str]:
    """Connection values in a stream's source, by reference without braces; Airflow masks them."""
    declared = config.streams.get(stream)
    if declared is None:
        return {}
    values = {}
    for reference in references(declared.source.options):
        if reference.kind == "conn":
            value = _value(stream, reference)
            if reference.is_secret:
                mask_secret(value)
            values[f"conn:{reference.name}"] = value
    return values


def _value(stream: str, reference: Reference) -> str:
    name, field = reference.connection
    connection = read_connection(
        name, lambda problem: unresolved(stream, reference, f"but the connection {problem}")
    )
    # A field of the connection, or a key of its extras.
    own = field in _FIELDS
    value = getattr(connection, field) if own else connection.extra_dejson.get(field)
    if value in (None, ""):
        raise unresolved(stream, reference, "which is empty")
    return str(value)


class SubmitBackfillOperator(CapstanSubmitOperator):
    """Submits backfills; each published run emits an event of its target's asset.

    Its request names one replay, or several as `backfills`. While all that is left to do may not
    begin, as a replay is paused or outside its hours, it waits without Spark, and without using up
    a try. Events of what is published by then are emitted when the task succeeds.
    """

    job = "backfill"
    usual_outlets = (REPLAYED,)

    def why_not_now(self, request: Json) -> CapstanError | None:
        """Why the backfills that are left may not be submitted now; None if some may."""
        several = request.get("backfills", [request])
        # What is no backfill is for the job to refuse.
        asked = [each for each in several if isinstance(each, Mapping)] if several else []
        held = [None if each.get("dry_run") else self._why_held(each) for each in asked]
        why = next(filter(None, held), None)
        free = (each for each, hold in zip(asked, held, strict=True) if hold is None)
        return None if why is None or any(map(self._has_left, free)) else why

    def wait_for_more(self, context: Context, *rest: Any, **named: Any) -> None:
        """Keep what the job has published, to tell of it in the end, and leave the slot."""
        if self._result is not None:
            keep_published(context, self._result)
        super().wait_for_more(context, *rest, **named)

    def _why_held(self, backfill: Mapping[str, Any]) -> CapstanError | None:
        return self.why_held(str(backfill.get("replay")))

    def _has_left(self, backfill: Mapping[str, Any]) -> bool:
        """Whether the job has anything to do for a backfill, if only to refuse it."""
        from capstan.backfill.planner import BackfillRequest
        from capstan.backfill.run import prepare
        from capstan.storage.lake import Lake

        declared = self.settings.declarations
        try:
            request = read_request(BackfillRequest, backfill)
            return bool(prepare(Lake.at(self.settings.lake), declared, request).replays)
        except CapstanError:
            return True


class BackfillOperator(SubmitBackfillOperator):
    """Submits the backfill of a declared replay: one job, a run for each stretch of gaps.

    The XCom lists the runs. Intervals whose rows are published already are not replayed.
    """

    template_fields = (
        "replay",
        "since",
        "until",
        "fields",
        *SubmitBackfillOperator.template_fields,
    )

    def __init__(
        self,
        *,
        replay: str,
        since: str | None = None,
        until: str | None = None,
        fields: GivenFields | None = None,
        **rest: Any,
    ) -> None:
        """Create a backfill task.

        Args:
            replay: The declared replay. Templated.
            since: The first time; by default the replay's own. Templated.
            until: The end; by default the replay's own. Templated.
            fields: The other fields of `capstan.backfill.planner.BackfillRequest`, such as `chunk`
                and `keep_going`. Templated.
            rest: Arguments of a `CapstanSubmitOperator`, such as `lake` and `config`.
        """
        super().__init__(**rest)
        self.replay = replay
        self.since = since
        self.until = until
        self.fields = dict(fields or {})

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the backfill, and return its runs."""
        from capstan.backfill.planner import BackfillRequest

        given = {"replay": self.replay, "since": self.since, "until": self.until, **self.fields}
        with as_task():
            self.request = read_fields(BackfillRequest, given)
        return super().execute(context)


class AuditOperator(CapstanSubmitOperator):
    """Submits an audit; the task fails with `CAP-AUDIT` if a table is not what the tape says.

    The XCom has each audit, failed ones included.
    """

    job = "audit"
    template_fields = ("runs", "stream", "table", "fields", *CapstanSubmitOperator.template_fields)

    def __init__(
        self,
        *,
        runs: Sequence[str] | str | None = None,
        stream: str | None = None,
        table: str | None = None,
        fields: GivenFields | None = None,
        **rest: Any,
    ) -> None:
        """Create an audit task: of runs, or of a table against a stream.

        Args:
            runs: One run or several, such as the output of a replay task's XCom `run`. Templated.
            stream: The stream whose rows `table` should have. Templated.
            table: A table of the lake or of a catalog, a declared target, or a Delta path.
                Templated.
            fields: The other fields of `capstan.replay.standalone_audit.TableAudit`. Templated.
            rest: Arguments of a `CapstanSubmitOperator`, such as `lake` and `config`.
        """
        super().__init__(**rest)
        self.runs = runs
        self.stream = stream
        self.table = table
        self.fields = dict(fields or {})

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the audit, and return its result."""
        if self.runs is not None:
            with as_task():
                runs = read_field("runs", Names, self.runs)
            self.request = {"audits": [{"run": run} for run in runs]}
        else:
            # Loads Spark's packages, which nothing else here needs.
            from capstan.replay.standalone_audit import TableAudit

            given = {"stream": self.stream, "table": self.table, **self.fields}
            with as_task():
                self.request = read_fields(TableAudit, given)
        return super().execute(context)


class PlanRollbackOperator(CapstanOperator):
    """Refuses a rollback that is impossible, without Spark and without a slot of its pool.

    The XCom is the request of the job `rollback`. If the run is already rolled back, it is the
    result of a rollback that changes nothing, and the tasks after it are skipped.
    """

    template_fields = ("shown",)
    overwrite_rtif_after_execution = True
    operator_extra_links = (RunLink(),)
    ui_color = "#f3ecd2"

    shown = ""
    run_name: str | None = None

    def execute(self, context: Context) -> dict[str, object]:
        """Check the run that the parameters name, and return the request."""
        from capstan.jobs.finished_runs import require_reversible, rolled_back_before
        from capstan.storage.lake import Lake

        self.run_name = run = str(context["params"]["run"]).strip()
        with as_task():
            done = rolled_back_before(require_reversible(Lake.at(self.settings.lake), run))
        if done is not None:
            self.shown = log_text(rollback_document(asdict(done)))
            raise skip_following(context, asdict(done))
        return {"run": run}


class RollbackOperator(CapstanSubmitOperator):
    """Submits the rollback of a run; its request is the output of a `PlanRollbackOperator`.

    The event of the table's asset carries the job's result: `rolled_back`, the run, and the
    version with the previous rows.
    """

    job = "rollback"
    usual_outlets = (REPLAYED,)
    operator_extra_links = (RunLink(), TargetLink())

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Roll the run back, and return the job's result."""
        self.run_name = named_run(self._read_request())
        return super().execute(context)
