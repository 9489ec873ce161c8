"""The operator that submits Capstan's apps: a request in, its result to XCom and to assets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
from airflow.sdk import Asset, Context, XComArg, timezone
from airflow.sdk.exceptions import AirflowException

from capstan.airflow.assets import plain
from capstan.airflow.operators.attempt_folder import TryFolder, try_folder
from capstan.airflow.operators.failures import (
    TaskBrokenError,
    as_task,
    come_back,
    failure,
    say_last,
)
from capstan.airflow.operators.spark_connection import spark_master
from capstan.airflow.operators.spark_operator import SparkSubmitOperator
from capstan.airflow.operators.telemetry import tell_stream
from capstan.airflow.settings import Settings
from capstan.errors import IncompleteError, InvalidRequestError
from capstan.spark.owner_watch import VARIABLE, name_owner
from capstan.spark.submit_options import submission

if TYPE_CHECKING:
    from capstan.airflow.operators.lineage import Lineage

Told = Callable[[Mapping[str, object]], Mapping[str, object]]
Show = Callable[[Mapping[str, object]], str]

_APP_SAID = frozenset({1, 2, 3, 4, 5})
# Of so many a staged replay takes about ten seconds of processor time, as `make bench` tells.
_MANY = 1_000_000
_OBJECT = "give a JSON object with the keys of the app's request, as the task `plan` makes it"


class CapstanSubmitOperator(SparkSubmitOperator):
    """Submits one of Capstan's apps to Spark, and takes its answer.

    The app's result is the task's XCom, and the `extra` of the events of its assets. What a failed
    try was asked and what it answered stay in its folder; of one that succeeded nothing does.

    Exit codes 1, 2 and 4 of the app fail the task without a retry, when the app has said why; code
    3 has it wait, without using up a try. Anything else is a failure that is retried. A retry is
    the next attempt of the same run: it takes over its claim, and shuts out what is left of it.
    """

    template_fields = ("request", "records", "shown", *SparkSubmitOperator.template_fields)
    template_fields_renderers = {"request": "json", "conf": "json", "shown": "md"}  # noqa: RUF012
    # So that the page of the task has what was found, and what was really submitted.
    overwrite_rtif_after_execution = True
    ui_color = "#d7e8f7"

    def __init__(
        self,
        *,
        app: str,
        setting: Settings,
        request: Mapping[str, object] | XComArg | str,
        records: int | XComArg | str | None = None,
        told: Told = dict,
        show: Show | None = None,
        wait: timedelta = timedelta(minutes=5),
        patience: timedelta = timedelta(days=7),
        conf: Mapping[str, str] | None = None,
        **rest: object,
    ) -> None:
        """Prepare a task that submits `app`.

        Args:
            app: The app, by the name of its file without its ending.
            setting: Where Capstan works.
            request: What the app is asked: a mapping, JSON text, or another task's output.
            records: How many records it is about, where that is known: few let it start faster.
            told: What of the result the events of the task's assets carry; all by default.
            show: Makes of the result what the task's page shows, as markdown.
            wait: How long a task waits before it asks again whether times are complete. One that
                comes back before Airflow's scheduler has noted its end is taken for a lost one:
                a few seconds are too short.
            patience: How long it does so before it fails.
            conf: Spark settings that win over Capstan's own.
            rest: Anything that a `SparkSubmitOperator` takes.
        """
        rest.setdefault("pool", setting.pool)
        rest.setdefault("conn_id", setting.connection)
        rest.setdefault("on_failure_callback", say_last)
        rest.setdefault("on_retry_callback", say_last)
        super().__init__(
            application=str(setting.apps / f"{app}.py"),
            conf=dict(conf or {}),
            name=f"capstan {app}",
            **rest,  # type: ignore[arg-type]
        )
        self.request = request
        self.records = records
        self._app = app
        self._answer: Mapping[str, object] | None = None
        self._setting = setting
        self.shown = ""
        self._told = told
        self._show = show
        self._wait = wait
        self._patience = patience

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the app, and wait for its end; its result."""
        folder = try_folder(self._setting.work, context)
        with as_task():
            asked = self._asked()
            folder.prepare(asked)
            self._prepare(folder)
        try:
            return self._carried_out(context, folder)
        finally:
            # Also of what failed: how far the stream is, and that a run of it has failed.
            tell_stream(self._setting, asked.get("stream"))

    def _carried_out(self, context: Context, folder: TryFolder) -> dict[str, object]:
        try:
            super().execute(context)
        except AirflowException as error:
            self._failed(context, folder, error)
        result = folder.answer()
        if result is None:
            raise TaskBrokenError("CAP-SUBMIT: spark-submit ended well, and left no result")
        self._answer = result
        self._say(result)
        self.tell_assets(context, result)
        folder.remove()
        return result

    def tell_assets(self, context: Context, result: Mapping[str, object]) -> None:
        """Give the events of the task's assets what the result says of them."""
        events = context["outlet_events"]
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                events[outlet].extra = plain(self._told(result))

    def get_openlineage_facets_on_complete(self, _: object) -> Lineage:
        """What the task has read and written; of one that has failed what it did before.

        Airflow's OpenLineage provider alone calls it, where it is installed and told a transport.
        It logs what goes wrong here, and fails no task by it.
        """
        # Not at the top: DAG files are parsed without OpenLineage's client.
        from capstan.airflow.operators.lineage import lineage

        return lineage(self._app, self._setting.lake, self._answer)

    def on_kill(self) -> None:
        """End the app: `spark-submit`, the driver's JVM, its Python, and all that these started."""
        submitted = getattr(self._hook, "_submit_sp", None)
        if submitted is not None and submitted.poll() is None:
            _end(submitted.pid)
        if self._hook is not None:
            super().on_kill()

    def _asked(self) -> Mapping[str, object]:
        asked = self.request
        try:
            found = json.loads(asked) if isinstance(asked, str) else asked
        except ValueError as error:
            raise InvalidRequestError(
                "CAP-REQUEST", f"the request is not JSON: {error}", _OBJECT
            ) from error
        if not isinstance(found, Mapping):
            raise InvalidRequestError("CAP-REQUEST", "the request is not a JSON object", _OBJECT)
        return found

    def _prepare(self, folder: TryFolder) -> None:
        """Set what `spark-submit` is given: the app's arguments, Spark's settings, variables."""
        master = spark_master(self._conn_id)
        few = self.records is not None and int(str(self.records)) <= _MANY
        given = submission(master, short=few)
        self.conf = {**given.conf, **(self.conf or {})}
        self.jars = self.jars or given.jars or None
        self._driver_memory = self._driver_memory or given.memory
        owner = {VARIABLE: name_owner(_owners())}
        self.env_vars = {**given.environment, **owner, **(self.env_vars or {})}
        self.application_args = [
            str(folder.request),
            *("--lake", self._setting.lake),
            *("--streams", str(self._setting.streams)),
            *("--result", str(folder.result)),
        ]

    def _failed(self, context: Context, folder: TryFolder, error: AirflowException) -> None:
        """Raise what the app's end means for the task."""
        submitted = getattr(self._hook, "_submit_sp", None)
        code = None if submitted is None else submitted.returncode
        answer = folder.answer()
        if answer is None or "error" not in answer or code not in _APP_SAID:
            # Not an answer: Spark or its JVM has failed, whatever code that gave.
            last = str(error).strip().splitlines()[-1] if str(error).strip() else ""
            raise TaskBrokenError(
                f"CAP-SUBMIT: spark-submit ended with {code} and no answer: {last}"
            ) from error
        self._answer = answer
        self._say(answer)
        context["ti"].xcom_push(key="return_value", value=answer)
        if code == IncompleteError.exit_code:
            self._wait_for_more(context, answer.get("message"))
        raise failure(code, answer) from None

    def _say(self, result: Mapping[str, object]) -> None:
        """Show the result on the task's page and in its log."""
        if self._show is not None:
            self.shown = self._show(result)
            for line in self.shown.splitlines():
                self.log.info("%s", line)

    def _wait_for_more(self, context: Context, why: object) -> None:
        """Come back later, as long as there is patience; a try is not used up by it."""
        now = timezone.utcnow()
        since = context["ti"].get_first_reschedule_date(context) or now
        if now - since < self._patience:
            self.log.info("not complete yet: %s", why)
            raise come_back(now + self._wait)


def _owners() -> Collection[int]:
    """The processes that a submitted app must not outlive: this one, and what supervises it."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CommsDecoder

    # `dag.test` runs tasks in a process whose parent has nothing to do with them.
    supervised = isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), CommsDecoder)
    return [os.getpid(), os.getppid()] if supervised else [os.getpid()]


def _end(process: int) -> None:
    """Kill a process and all that it has started."""
    try:
        root = psutil.Process(process)
        tree = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for each in tree:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
