"""The operator that submits Capstan's jobs: request in, result to XCom and asset events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import AssetAlias, Context, XComArg, timezone
from airflow.sdk.exceptions import AirflowException

from capstan.airflow.lake_files import portable_declarations
from capstan.airflow.settings import Settings, connection_id, environment_pool
from capstan.airflow.tasks.attempt_name import attempt_name
from capstan.airflow.tasks.capstan_operator import is_deferrable
from capstan.airflow.tasks.driver_elsewhere import ON_CLUSTER, UNWAITED, outcome_of, silent
from capstan.airflow.tasks.failures import (
    HELD,
    as_task,
    broken,
    log_error_last,
    set_usual,
    unusable,
)
from capstan.airflow.tasks.job_operator import JobOperator
from capstan.airflow.tasks.maker import with_maker
from capstan.airflow.tasks.program_lines import LeveledLog
from capstan.airflow.tasks.spark_program import (
    TryFolder,
    inherited,
    kill_tree,
    owners,
    spark_master,
    try_folder,
)
from capstan.airflow.tasks.telemetry import send_stream_metrics
from capstan.core.config import ProjectConfig, Replay, Stream
from capstan.core.json_object import Json
from capstan.errors import CapstanError, IncompleteError, InvalidRequestError
from capstan.jobs import job_file
from capstan.spark.owner_watch import VARIABLE, name_owner
from capstan.spark.submit_options import Submission, submission
from capstan.storage.s3_access import child_variables

if TYPE_CHECKING:
    from capstan.storage.job_attempts import JobAttempt

_JOB_CODES = frozenset({1, 2, 3, 4, 5})
# A staged replay of this many records takes about ten seconds of CPU time (`make bench`).
_MANY = 1_000_000
_CLIENT = (
    "a task that runs spark-submit in client mode cannot be deferrable: Spark's driver runs below "
    "the task, and ends with it"
)
_DEFER = (
    "give its connection the deploy mode cluster, on YARN or Kubernetes; or start the job with an "
    "operator that does not wait for its end, and take its result with "
    "ResultOperator(deferrable=True); to wait for times, put FrontierSensor(deferrable=True) before"
)
_LOOKS = timedelta(minutes=1)  # the longest time between two looks of a trigger
_LOOKS_HERE = 5.0  # seconds between two looks of a task that holds its slot
_OBJECT = "give a JSON object with the keys of the job's request, such as the task `plan` returns"


class CapstanSubmitOperator(JobOperator, SparkSubmitOperator):
    """Submits one of Capstan's jobs to Spark, and takes its result.

    The result is the task's XCom, and the `extra` of its assets' events. In client mode, a failed
    try keeps its request and result in its folder; a successful try keeps nothing.

    In cluster mode, by the connection or by `deploy_mode`, request and result are in the lake, and
    the driver outlives the task: a try finds what an earlier one has submitted by the ids of the
    task instance, and waits for it instead of submitting again.

    When the job has reported an error, exit codes 1, 2 and 4 fail the task without a retry, and
    code 3 makes it wait without using up a try. Any other failure is retried. A retry is the next
    attempt of the same run: it takes over the claim, and fences what is left of the earlier one.
    """

    # Aliases for what its job changes, which is known at run time only.
    usual_outlets: tuple[AssetAlias, ...] = ()
    template_fields = (
        "request",
        "records",
        "shown",
        "lake",
        "config",
        *SparkSubmitOperator.template_fields,
    )
    template_fields_renderers = {"request": "json", "conf": "json"}  # noqa: RUF012
    ui_color = "#d7e8f7"

    def __init__(
        self,
        *,
        app: str | None = None,
        request: Json | XComArg | str = MappingProxyType({}),
        settings: Settings | None = None,
        records: int | XComArg | str | None = None,
        wait: timedelta = timedelta(minutes=5),
        patience: timedelta = timedelta(days=7),
        deferrable: bool | None = None,
        conf: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> None:
        """Create a task that submits a job.

        Args:
            app: The job, if it is not that of the class.
            request: The job's request: a mapping, JSON text, or another task's output.
            settings: The settings; by default those of the environment, read when the task runs.
            records: The number of records, if known: with few, the job starts faster.
            wait: The time between two checks for completeness. Not a few seconds: Airflow takes a
                task for lost that returns before the scheduler has noted its end.
            patience: The longest wait for completeness, or by a trigger, before the task fails.
            deferrable: In cluster mode, whether a trigger waits for the driver, many in one
                triggerer, instead of this task; by default `[operators] default_deferrable`. In
                client mode the driver runs below the task, which cannot leave it.
            conf: Spark settings that override Capstan's.
            rest: `lake` and `config`, if not those of the settings, templated; other arguments
                of a `JobOperator` and a `SparkSubmitOperator`.
        """
        if self.usual_outlets:
            rest.setdefault("outlets", list(self.usual_outlets))
        pool = environment_pool() if settings is None else settings.pool
        set_usual(
            rest,
            conn_id=connection_id() if settings is None else settings.connection,
            on_retry_callback=log_error_last,
            **({} if pool is None else {"pool": pool}),
        )
        super().__init__(
            application=job_file(app or self.job),
            conf=dict(conf or {}),
            name=f"capstan {app or self.job}",
            settings=settings,
            wait=wait,
            patience=patience,
            **rest,
        )
        self.job = app or self.job
        self.request = request
        self.records = records
        self.deferrable = deferrable
        self._outlived = False

    def pre_execute(self, context: Any) -> None:
        """Refuse to defer in client mode."""
        super().pre_execute(context)
        with as_task():
            if self.deferrable and not spark_master(self._conn_id, self._deploy_mode)[1]:
                raise InvalidRequestError("CAP-REQUEST", _CLIENT, _DEFER, key="deferrable")

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the job, unless it is at work already, wait for its end, return its result."""
        with as_task():
            request = self._read_request()
            master, self._outlived = spark_master(self._conn_id, self._deploy_mode)
        try:
            run = self._run_elsewhere if self._outlived else self._run_below
            return run(context, request, master)
        finally:
            # After failures too: the stream's progress, and that its run failed.
            send_stream_metrics(self.settings, request.get("stream"))

    def job_attempt(self, context: Context) -> JobAttempt:
        """The attempt in the lake that is named after this task instance, for all its tries."""
        # Not at the top: parsing a DAG file should not import table readers.
        from capstan.storage.job_attempts import JobAttempt
        from capstan.storage.lake import Lake

        name = attempt_name(context["ti"], f"{self.task_id} {self.job}")
        return JobAttempt(Lake.at(self.settings.lake), name)

    def why_not_now(self, request: Json) -> CapstanError | None:
        """Why the job may not be submitted at this moment; None if it may."""
        return None

    def why_held(self, replay: str) -> CapstanError | None:
        """Why no run of a replay's backfills may begin now; None if it may."""
        # Not at the top: parsing a DAG file should not import table readers.
        from capstan.backfill.hold import why_held
        from capstan.storage.lake import Lake

        declared = self.settings.declarations.replays.get(replay)
        # What is not declared is for the job to refuse.
        return None if declared is None else why_held(Lake.at(self.settings.lake), declared)

    def wait_while(self, context: Context, held: CapstanError | None) -> None:
        """Reschedule the task if its runs may not begin now."""
        if held is not None:
            self.wait_for_more(context, f"{held.message}; {held.hint}", held=True)

    def _run_below(self, context: Context, request: Json, master: str) -> dict[str, object]:
        """Run the job in client mode, below this task."""
        with as_task():
            self.wait_while(context, self.why_not_now(request))
            folder = try_folder(self.settings.work, context)
            folder.prepare(with_maker(context, request))
            defaults = self._prepare(request, master)
            owner = {VARIABLE: name_owner(owners())}
            self.env_vars = {**defaults.environment, **owner, **(self.env_vars or {})}
            self.application_args = [
                str(folder.request),
                *("--lake", self.settings.lake),
                *("--config", str(self.settings.config)),
                *("--result", str(folder.result)),
            ]
        try:
            # The driver finds S3 by its environment, like every other process without Airflow.
            with inherited(child_variables()):
                super().execute(context)
        except AirflowException as error:
            self._failed(context, folder, error)
        result = folder.read_result()
        if result is None:
            raise broken("spark-submit succeeded, but left no result")
        self.take(context, result)
        folder.remove()
        return result

    def _run_elsewhere(self, context: Context, request: Json, master: str) -> dict[str, object]:
        """Run the job in cluster mode, or take the result of what was submitted before."""
        with as_task():
            attempt = self.job_attempt(context)
            # One that a trigger has woken waits for what it has submitted, however it renders now.
            woken = self._waits_since is not None
            asked = attempt.prepared() or request if woken else request
            if not attempt.is_pending(asked):
                if woken:
                    raise silent(attempt)
                self._submit(context, attempt, request, master)
            self._await(attempt)
            outcome = outcome_of(attempt, asked)
        code, result = outcome.exit_code, outcome.report
        failed = self.take_failure(context, code, result) if code else None
        if failed is None:
            self.take(context, result)
        attempt.withdraw()
        if failed is not None:
            self._end(context, code, result, failed)
        return result

    def _submit(self, context: Context, attempt: JobAttempt, request: Json, master: str) -> None:
        """Submit the job to a driver that takes its request from the lake."""
        from capstan.storage.job_attempts import QUEUED, SILENT

        self.wait_while(context, self.why_not_now(request))
        if attempt.is_at_work_on_another(request):
            # Both would sign, and leave their result, under one name.
            problem = f"attempt {attempt.name} is at work on another request of this task"
            raise broken(problem, f"{ON_CLUSTER}, and end it there or wait for its end")
        defaults = self._prepare(request, master)
        self.conf = {**UNWAITED, **(self.conf or {})}
        self.application_args = ["--lake", self.settings.lake, "--attempt", attempt.name, "--join"]
        # Python and its packages are those of the cluster.
        own = {k: v for k, v in defaults.environment.items() if not k.startswith("PYSPARK_")}
        # The provider does not follow the driver: what becomes of it is in the lake.
        self.durable = False
        attempt.prepare(with_maker(context, request), portable_declarations(self.settings))
        # If this task is killed now, nobody knows whether the driver will begin.
        attempt.sign(request, begins=SILENT)
        try:
            with inherited({**child_variables(), **own}):
                super().execute(context)
        except Exception as error:
            code = self._exit_code()
            # One that was killed may have submitted the job before.
            if code is None or code >= 0:
                attempt.forget()
            if not isinstance(error, AirflowException):
                raise
            raise broken(f"spark-submit ended with {code}: {_last_line(error)}") from error
        if attempt.is_queued():
            attempt.sign(request, begins=QUEUED)

    def _await(self, attempt: JobAttempt) -> None:
        """Wait for the end of the job, by a trigger or in this slot."""
        if not attempt.is_over() and is_deferrable(self.deferrable):
            from capstan.airflow.tasks.lake_triggers import ResultTrigger

            since, now = self._waits_since or timezone.utcnow(), timezone.utcnow()
            if now - since >= self._patience:
                raise unusable(
                    f"attempt {attempt.name} is still at work after {self._patience}",
                    "clear the task, which goes on waiting for it, or give it more patience",
                )
            trigger = partial(ResultTrigger, attempt=attempt.name)
            self.defer_to(trigger, since, min(self._wait, _LOOKS), self._patience)
        while not attempt.is_over():
            time.sleep(_LOOKS_HERE)

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        hook._log = LeveledLog(hook.log)
        if self._outlived:
            # On Kubernetes it expects the exit code of the driver, for which nobody waits.
            hook._spark_exit_code = 0
        return hook

    def on_kill(self) -> None:
        """Kill `spark-submit`, and in client mode the driver: its JVM, its Python, their children.

        In cluster mode the driver goes on, and the next try waits for it.
        """
        submitted = getattr(self._hook, "_submit_sp", None)
        if submitted is not None and submitted.poll() is None:
            kill_tree(submitted.pid)
        if self._hook is not None and not self._outlived:
            super().on_kill()

    def _read_request(self) -> Json:
        given = self.request
        try:
            request = json.loads(given) if isinstance(given, str) else given
        except ValueError as error:
            raise InvalidRequestError(
                "CAP-REQUEST", f"the request is not JSON: {error}", _OBJECT
            ) from error
        if not isinstance(request, Mapping):
            raise InvalidRequestError("CAP-REQUEST", "the request is not a JSON object", _OBJECT)
        return request

    def _prepare(self, request: Json, master: str) -> Submission:
        """Set Spark's settings of `spark-submit`, and return those that are usual."""
        few = isinstance(self.records, int | str) and int(self.records) <= _MANY
        defaults = submission(master, short=few, elsewhere=self._outlived)
        declared = declared_conf(self.settings.declarations, request)
        self.conf = {**defaults.conf, **declared, **(self.conf or {})}
        self.jars = self.jars or defaults.jars or None
        # The option would win over the setting.
        if "spark.driver.memory" not in self.conf:
            self._driver_memory = self._driver_memory or defaults.memory or None
        return defaults

    def _exit_code(self) -> int | None:
        """The exit code of `spark-submit`; None if it has not ended."""
        submitted = getattr(self._hook, "_submit_sp", None)
        return None if submitted is None else submitted.returncode

    def _failed(self, context: Context, folder: TryFolder, error: AirflowException) -> None:
        """Raise the exception for the job's failure."""
        code, result = self._exit_code(), folder.read_result()
        if result is None or "error" not in result or code not in _JOB_CODES:
            # No result of the job: Spark or its JVM failed, whatever the exit code.
            last = _last_line(error)
            raise broken(f"spark-submit ended with {code} and left no result: {last}") from error
        self._end(context, code, result, self.take_failure(context, code, result))

    def _end(self, context: Context, code: int, result: Json, failed: Exception) -> NoReturn:
        """Raise the exception for the job's failure, or wait for more."""
        if code == IncompleteError.exit_code:
            held = result["error"] in HELD
            self.wait_for_more(context, result.get("message"), held=held)
        raise failed from None


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[-1]


def declared_conf(config: ProjectConfig, request: Json) -> dict[str, str]:
    """The Spark settings that the declared replay of a request has, else its stream."""
    name = request.get("replay")
    declared: Replay | Stream | None
    if name is not None:
        declared = config.replays.get(str(name))
    else:
        declared = config.streams.get(str(request.get("stream")))
    return {} if declared is None else dict(declared.spark)
