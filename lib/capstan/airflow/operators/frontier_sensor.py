"""The frontier sensor: waits until a stream's times are proven complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSensorTimeout

from capstan.airflow.operators.failures import as_task, log_error_last
from capstan.airflow.settings import Settings
from capstan.errors import IncompleteError

_HINT = "check that the stream is captured, then clear this task"
Fields = Callable[[Context], Mapping[str, object]]


class FrontierSensor(BaseSensorOperator):
    """Waits until all times of a range are complete for the chosen workers of a stream.

    Completeness is proven, not guessed: no further records of those times can arrive. Each check
    reads the stream's index without a JVM. Between checks the task does not run: it holds no
    worker or pool slot, and needs no triggerer. The sensor also waits for a stream that is not on
    tape yet.
    """

    ui_color = "#e8dcf1"

    def __init__(
        self,
        *,
        setting: Settings,
        fields: Fields,
        poke_interval: timedelta = timedelta(minutes=1),
        timeout: timedelta = timedelta(days=7),
        **rest: object,
    ) -> None:
        """Create a sensor.

        Args:
            setting: The settings.
            fields: Gives `stream`, `workers`, `since` and `until` of a run.
            poke_interval: The time between two checks.
            timeout: The longest wait before the sensor fails without a retry.
            rest: Other arguments of a sensor.
        """
        rest.setdefault("mode", "reschedule")
        # Over days of checks, a single check may fail for a transient reason.
        rest.setdefault("retries", 5)
        rest.setdefault("on_failure_callback", log_error_last)
        super().__init__(poke_interval=poke_interval, timeout=timeout, **rest)  # type: ignore[arg-type]
        self._setting = setting
        self._fields = fields

    def execute(self, context: Context) -> object:
        """Check, and reschedule; fails with `CAP-INCOMPLETE` after the timeout."""
        try:
            return super().execute(context)
        except AirflowSensorTimeout:
            self._require_complete(context)
            return None

    def _require_complete(self, context: Context) -> None:
        from capstan.airflow.lake_queries import plan_request

        with as_task():
            fields = self._fields(context)
            plan = plan_request(self._setting, fields)
            if plan is None:
                problem = f"stream {fields.get('stream')} is not on tape yet"
                raise IncompleteError("CAP-INCOMPLETE", problem, _HINT)
            plan.require_complete()

    def poke(self, context: Context) -> bool:
        """Whether the range is complete now."""
        from capstan.airflow.lake_queries import plan_request

        with as_task():
            fields = self._fields(context)
            plan = plan_request(self._setting, fields)
        if plan is None:
            self.log.info("stream %s is not on tape yet", fields.get("stream"))
            return False
        times = [plan.tape.time_type.render(time) for time in plan.frontier.elements]
        self.log.info(
            "frontier of %s at %s: times before %s are %s",
            ", ".join(plan.workers.values()),
            ", ".join(map(str, times)) or "the end",
            fields.get("until") or "the end",
            "complete" if plan.complete else "not complete yet",
        )
        return plan.complete
