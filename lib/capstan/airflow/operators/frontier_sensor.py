"""The frontier sensor: waits until a stream's times are proven complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSensorTimeout

from capstan.airflow.operators.failures import as_task, say_last
from capstan.airflow.settings import Settings
from capstan.errors import IncompleteError

_HINT = "see whether the stream is captured, then clear this task"
Asked = Callable[[Context], Mapping[str, object]]


class FrontierSensor(BaseSensorOperator):
    """Waits until all times of a range are complete for the chosen workers of a stream.

    Complete is proven, not guessed: no record of those times can come any more. Each look reads
    the stream's index with no JVM, and between two looks the task is not running at all: it holds
    no slot of a worker or a pool, and needs no triggerer. A stream of which nothing is on tape yet
    is waited for.
    """

    ui_color = "#e8dcf1"

    def __init__(
        self,
        *,
        setting: Settings,
        asked: Asked,
        poke_interval: timedelta = timedelta(minutes=1),
        timeout: timedelta = timedelta(days=7),
        **rest: object,
    ) -> None:
        """Prepare a sensor.

        Args:
            setting: Where Capstan works.
            asked: Gives `stream`, `workers`, `since` and `until` of a run.
            poke_interval: How long it waits between two looks.
            timeout: How long it waits in all, before it fails without a retry.
            rest: Anything that a sensor takes.
        """
        rest.setdefault("mode", "reschedule")
        # In days of looking, one look may well fail for a reason that passes.
        rest.setdefault("retries", 5)
        rest.setdefault("on_failure_callback", say_last)
        super().__init__(poke_interval=poke_interval, timeout=timeout, **rest)  # type: ignore[arg-type]
        self._setting = setting
        self._asked = asked

    def execute(self, context: Context) -> object:
        """Look, and come back later; fails with `CAP-INCOMPLETE` once it has waited for long."""
        try:
            return super().execute(context)
        except AirflowSensorTimeout:
            self._require_complete(context)
            return None

    def _require_complete(self, context: Context) -> None:
        from capstan.airflow.lake_queries import look

        with as_task():
            asked = self._asked(context)
            plan = look(self._setting, asked)
            if plan is None:
                problem = f"nothing of stream {asked.get('stream')} is on tape yet"
                raise IncompleteError("CAP-INCOMPLETE", problem, _HINT)
            plan.require_complete()

    def poke(self, context: Context) -> bool:
        """Whether the range is complete now."""
        from capstan.airflow.lake_queries import look

        with as_task():
            asked = self._asked(context)
            plan = look(self._setting, asked)
        if plan is None:
            self.log.info("nothing of stream %s is on tape yet", asked.get("stream"))
            return False
        times = [plan.tape.time_type.render(time) for time in plan.frontier.elements]
        self.log.info(
            "frontier of %s at %s: times before %s are %s",
            ", ".join(plan.workers.values()),
            ", ".join(map(str, times)) or "the end",
            asked.get("until") or "the end",
            "complete" if plan.complete else "not complete yet",
        )
        return plan.complete
