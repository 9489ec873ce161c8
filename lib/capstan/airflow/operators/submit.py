"""The operator that submits Capstan's jobs: request in, result to XCom and asset events."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import psutil
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import AssetAlias, Context, XComArg
from airflow.sdk.exceptions import AirflowException

from capstan.airflow.settings import Settings, connection_id, environment_pool
from capstan.airflow.tasks.failures import HELD, as_task, failure, log_error_last, set_usual
from capstan.airflow.tasks.job_operator import JobOperator
from capstan.airflow.tasks.maker import with_maker
from capstan.airflow.tasks.program_lines import LeveledLog
from capstan.airflow.tasks.spark_program import TryFolder, inherited, spark_master, try_folder
from capstan.airflow.tasks.telemetry import send_stream_metrics
from capstan.core.config import ProjectConfig, Replay, Stream
from capstan.core.json_object import Json
from capstan.errors import CapstanError, IncompleteError, InvalidRequestError, SystemFailureError
from capstan.jobs import job_file
from capstan.spark.owner_watch import VARIABLE, name_owner
from capstan.spark.submit_options import submission
from capstan.storage.s3_access import child_variables

_JOB_CODES = frozenset({1, 2, 3, 4, 5})
# A staged replay of this many records takes about ten seconds of CPU time (`make bench`).
_MANY = 1_000_000
_CLIENT = (
    "a task that runs spark-submit in client mode cannot be deferrable: Spark's driver runs below "
    "the task, and ends with it"
)
_DEFER = (
    "start the job with an operator that does not wait for its end, and take its result with "
    "ResultOperator(deferrable=True); to wait for times, put FrontierSensor(deferrable=True) before"
)
_OBJECT = "give a JSON object with the keys of the job's request, such as the task `plan` returns"


class CapstanSubmitOperator(JobOperator, SparkSubmitOperator):
    """Submits one of Capstan's jobs to Spark, and takes its result.

    The result is the task's XCom, and the `extra` of its assets' events. A failed try keeps its
    request and result in its folder; a successful try keeps nothing.

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
            patience: The longest wait for completeness before the task fails.
            conf: Spark settings that override Capstan's.
            rest: `lake` and `config`, if not those of the settings, templated; other arguments
                of a `JobOperator` and a `SparkSubmitOperator`.
        """
        if rest.pop("deferrable", False):
            raise InvalidRequestError("CAP-REQUEST", _CLIENT, _DEFER, key="deferrable")
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

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the job, wait for its end, and return its result."""
        folder = try_folder(self.settings.work, context)
        with as_task():
            request = self._read_request()
            folder.prepare(with_maker(context, request))
            self._prepare(folder, declared_conf(self.settings.declarations, request))
        try:
            # The driver finds S3 by its environment, like every other process without Airflow.
            with inherited(child_variables()):
                return self._submit(context, folder)
        finally:
            # After failures too: the stream's progress, and that its run failed.
            send_stream_metrics(self.settings, request.get("stream"))

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

    def _submit(self, context: Context, folder: TryFolder) -> dict[str, object]:
        try:
            super().execute(context)
        except AirflowException as error:
            self._failed(context, folder, error)
        result = folder.read_result()
        if result is None:
            raise _broken("spark-submit succeeded, but left no result")
        self.take(context, result)
        folder.remove()
        return result

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        hook._log = LeveledLog(hook.log)
        return hook

    def on_kill(self) -> None:
        """Kill the job: `spark-submit`, the driver's JVM, its Python, and all their children."""
        submitted = getattr(self._hook, "_submit_sp", None)
        if submitted is not None and submitted.poll() is None:
            _kill_tree(submitted.pid)
        if self._hook is not None:
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

    def _prepare(self, folder: TryFolder, declared: Mapping[str, str]) -> None:
        """Set the arguments of `spark-submit`: the job's arguments, Spark settings, variables."""
        master = spark_master(self._conn_id)
        few = isinstance(self.records, int | str) and int(self.records) <= _MANY
        defaults = submission(master, short=few)
        self.conf = {**defaults.conf, **declared, **(self.conf or {})}
        self.jars = self.jars or defaults.jars or None
        # The option would win over the setting.
        if "spark.driver.memory" not in self.conf:
            self._driver_memory = self._driver_memory or defaults.memory
        owner = {VARIABLE: name_owner(_owners())}
        self.env_vars = {**defaults.environment, **owner, **(self.env_vars or {})}
        self.application_args = [
            str(folder.request),
            *("--lake", self.settings.lake),
            *("--config", str(self.settings.config)),
            *("--result", str(folder.result)),
        ]

    def _failed(self, context: Context, folder: TryFolder, error: AirflowException) -> None:
        """Raise the exception for the job's failure."""
        submitted = getattr(self._hook, "_submit_sp", None)
        code = None if submitted is None else submitted.returncode
        result = folder.read_result()
        if result is None or "error" not in result or code not in _JOB_CODES:
            # No result of the job: Spark or its JVM failed, whatever the exit code.
            last = str(error).strip().splitlines()[-1] if str(error).strip() else ""
            raise _broken(f"spark-submit ended with {code} and left no result: {last}") from error
        failed = self.take_failure(context, code, result)
        if code == IncompleteError.exit_code:
            held = result["error"] in HELD
            self.wait_for_more(context, result.get("message"), held=held)
        raise failed from None


def _broken(problem: str) -> AirflowException:
    """The exception for a job that left no result."""
    hint = "see the lines of Spark above; the next try is the next attempt of the same run"
    error = {"error": "CAP-SUBMIT", "message": problem, "hint": hint}
    return failure(SystemFailureError.exit_code, error)


def declared_conf(config: ProjectConfig, request: Json) -> dict[str, str]:
    """The Spark settings that the declared replay of a request has, else its stream."""
    name = request.get("replay")
    declared: Replay | Stream | None
    if name is not None:
        declared = config.replays.get(str(name))
    else:
        declared = config.streams.get(str(request.get("stream")))
    return {} if declared is None else dict(declared.spark)


def _owners() -> Collection[int]:
    """The processes that a submitted job must not outlive: this one and its supervisor."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CommsDecoder

    # Under `dag.test`, the parent process has nothing to do with the task.
    supervised = isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), CommsDecoder)
    return [os.getpid(), os.getppid()] if supervised else [os.getpid()]


def _kill_tree(process: int) -> None:
    """Kill a process and its descendants."""
    try:
        root = psutil.Process(process)
        tree = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for member in tree:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
