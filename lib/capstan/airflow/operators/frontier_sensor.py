"""The frontier sensor: waits until times of streams are proven complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, timezone
from airflow.sdk.exceptions import AirflowSensorTimeout

from capstan.airflow.assets import plain
from capstan.airflow.tasks.capstan_operator import CapstanOperator, is_deferrable
from capstan.airflow.tasks.failures import as_task, set_usual
from capstan.core.config.loading.validation import read_field
from capstan.core.config.request_fields import GivenFields, Names
from capstan.errors import IncompleteError

_HINT = "check that the stream is captured, then clear this task"
_RANGE = ("stream", "workers", "since", "until", "replay")


class FrontierSensor(CapstanOperator, BaseSensorOperator):
    """Waits until all times of a range are complete for the chosen workers of all its streams.

    Completeness is proven, not guessed: no further records of those times can arrive. Each check
    reads the streams' indexes without a JVM. Between checks the task does not run: it holds no
    worker or pool slot. If it is deferrable, a trigger looks in its place, many in one triggerer;
    else it needs no triggerer. The sensor also waits for a stream that is not on tape yet.
    """

    template_fields = (*_RANGE, "lake", "config")
    ui_color = "#e8dcf1"

    def __init__(
        self,
        *,
        stream: str | Sequence[str] | None = None,
        workers: Sequence[str] | str | None = None,
        since: str | None = None,
        until: str | None = None,
        replay: str | None = None,
        fields: Callable[[Context], GivenFields] | None = None,
        poke_interval: timedelta = timedelta(minutes=1),
        timeout: timedelta = timedelta(days=7),
        deferrable: bool | None = None,
        **rest: Any,
    ) -> None:
        """Create a sensor.

        Args:
            stream: The stream, or several that must all be complete; by default those of `replay`.
                Templated.
            workers: Labels or numbers; all by default. Templated.
            since: The first time; from the start by default. Templated.
            until: The first time that need not be complete; all times by default. Templated.
            replay: A declared replay, whose stream and workers are the default. Templated.
            fields: Gives these fields of a run, in place of the arguments above.
            poke_interval: The time between two checks.
            timeout: The longest wait before the sensor fails without a retry.
            deferrable: Whether a trigger looks, instead of this task; by default
                `[operators] default_deferrable`.
            rest: `lake` and `config`, if not those of the settings, templated; other arguments of a
                sensor.
        """
        # Over days of checks, a single check may fail for a transient reason.
        set_usual(rest, mode="reschedule", retries=5)
        super().__init__(poke_interval=poke_interval, timeout=timeout, **rest)
        self.stream = stream
        self.workers = workers
        self.since = since
        self.until = until
        self.replay = replay
        self._fields_of = fields
        self._deferrable = is_deferrable(deferrable)

    def _fields(self, context: Context) -> GivenFields:
        if self._fields_of is not None:
            return self._fields_of(context)
        given = {name: getattr(self, name) for name in _RANGE}
        if self.replay is not None:
            declared = self.settings.declarations.replay(self.replay)
            given |= {"stream": declared.stream, "into": declared.target}
            if declared.streams:
                given |= {"streams": declared.keyed, "pipeline": declared.pipeline}
                given |= {"sink": declared.sink}
            if declared.workers_of and self.workers is None:
                given |= {"workers_of": declared.workers_of}
        # A plan has a target; where it is does not matter to the frontier.
        return {"into": "frontier", **given}

    def _by_stream(self, context: Context) -> list[GivenFields]:
        """The fields of a plan for each of the streams that are named one by one."""
        fields = self._fields(context)
        if fields.get("stream") is None:
            return [fields]
        names = read_field("stream", Names, fields["stream"])
        return [{**fields, "stream": name} for name in names]

    def execute(self, context: Context) -> object:
        """Check, and leave the slot; fails with `CAP-INCOMPLETE` after the timeout."""
        try:
            if not self._deferrable:
                return super().execute(context)
            if not self.poke(context):
                self._defer(context)
        except AirflowSensorTimeout:
            self._require_complete(context)
        return None

    def _defer(self, context: Context) -> None:
        from capstan.airflow.tasks.lake_triggers import FrontierTrigger

        since, patience = self.waits_since(context), timedelta(seconds=self.timeout)
        if timezone.utcnow() - since >= patience:
            raise AirflowSensorTimeout
        fields = [plain(each) for each in self._by_stream(context)]
        trigger = partial(FrontierTrigger, config=str(self.settings.config), fields=fields)
        self.defer_to(trigger, since, timedelta(seconds=self.poke_interval), patience)

    def _require_complete(self, context: Context) -> None:
        from capstan.airflow.lake_queries import plan_request

        with as_task():
            for fields in self._by_stream(context):
                plan = plan_request(self.settings, fields)
                if plan is None:
                    problem = f"stream {fields.get('stream')} is not on tape yet"
                    raise IncompleteError("CAP-INCOMPLETE", problem, _HINT)
                plan.require_complete()

    def poke(self, context: Context) -> bool:
        """Whether the range is complete now."""
        with as_task():
            return all(map(self._is_complete, self._by_stream(context)))

    def _is_complete(self, fields: GivenFields) -> bool:
        from capstan.airflow.lake_queries import plan_request

        plan = plan_request(self.settings, fields)
        if plan is None:
            self.log.info("stream %s is not on tape yet", fields.get("stream"))
            return False
        times = [plan.inputs.tape.time_type.render(time) for time in plan.frontier.elements]
        self.log.info(
            "frontier of %s at %s: times before %s are %s",
            ", ".join(each.label(n) for each in plan.inputs for n in each.workers),
            ", ".join(map(str, times)) or "the end",
            fields.get("until") or "the end",
            "complete" if plan.complete else "not complete yet",
        )
        return plan.complete
