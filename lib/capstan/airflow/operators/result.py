"""The operator that takes the result of a job which another operator has submitted."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Context, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.assets import CAPTURED, REPLAYED
from capstan.airflow.tasks.attempt_name import attempt_template
from capstan.airflow.tasks.capstan_operator import is_deferrable
from capstan.airflow.tasks.failures import as_task, set_usual, unusable
from capstan.airflow.tasks.job_operator import JobOperator
from capstan.airflow.tasks.links import CertificateLink, RunLink, TargetLink
from capstan.airflow.tasks.telemetry import send_stream_metrics

if TYPE_CHECKING:
    from capstan.storage.job_attempts import JobAttempt, JobOutcome

_FAILED = frozenset({"failed", "upstream_failed"})


class ResultOperator(JobOperator):
    """Takes the result of a job that another operator has submitted with `--attempt`.

    It reads `jobs/<attempt>/result.json` in the lake, and needs neither Spark nor Java. The XCom is
    the result, such as the certificate of a replay. Asset events, the page, and failures are those
    of the operators that submit jobs: after exit codes 1 to 4 the task fails without a retry.

    It runs whatever became of the submitting task, and fails without a retry (`CAP-RESULT`) if the
    job has left no result, or none of this start.
    """

    template_fields = ("attempt", "shown", "lake", "config")
    operator_extra_links = (RunLink(), CertificateLink(), TargetLink())
    ui_color = "#dcefd6"

    def __init__(
        self,
        *,
        attempt: str | None = None,
        wait: timedelta = timedelta(minutes=1),
        patience: timedelta | None = None,
        deferrable: bool | None = None,
        **rest: Any,
    ) -> None:
        """Create a task that takes a result.

        Args:
            attempt: The name of the attempt, such as `attempt` of a `PlanOperator`; by default
                `attempt_template` of this task's id. Templated.
            wait: The time between two looks for the result.
            patience: How long to wait for a result, without holding a slot, when the submitting
                task has succeeded without waiting for the job; by default not at all, and a week
                with `deferrable=True`.
            deferrable: Whether a trigger looks for the result, many in one triggerer, instead of
                this task; by default `[operators] default_deferrable`.
            rest: `lake` and `config`, whose declarations may name the target's asset; `render`;
                other arguments of an operator.
        """
        set_usual(rest, trigger_rule=TriggerRule.ALL_DONE, outlets=[REPLAYED, CAPTURED])
        self._deferrable = is_deferrable(deferrable)
        if patience is None:
            patience = timedelta(days=7 if deferrable else 0)
        super().__init__(wait=wait, patience=patience, **rest)
        self.attempt = attempt or attempt_template(self.task_id)

    def execute(self, context: Context) -> dict[str, object]:
        """Read the result, and return it or fail as the job did."""
        with as_task():
            outcome = self._outcome(context)
        self.job = outcome.verb
        # Airflow emits an event for every alias among the outlets that was given one.
        other = REPLAYED if outcome.verb == "capture" else CAPTURED
        self.outlets = [outlet for outlet in self.outlets if outlet != other]
        result = outcome.report
        if outcome.exit_code:
            shown = outcome.result is not None
            raise self.take_failure(context, outcome.exit_code, result, shown=shown)
        self.take(context, result)
        send_stream_metrics(self.settings, result.get("stream"))
        return result

    def _outcome(self, context: Context) -> JobOutcome:
        """The outcome of the job."""
        from capstan.storage.job_attempts import JobAttempt
        from capstan.storage.lake import Lake

        attempt = JobAttempt(Lake.at(self.settings.lake), self.attempt)
        states = self._upstream(context)
        failed = sorted(name for name, state in states.items() if state in _FAILED)
        outcome = attempt.outcome()
        if outcome is None:
            self._missing(context, attempt, states, failed)
        if outcome.attempt != attempt.name:
            raise unusable(
                f"{attempt.result_path} is of attempt {outcome.attempt}",
                "start the job again, with --attempt of this task",
            )
        if failed and outcome.exit_code == 0:
            raise unusable(
                f"{', '.join(failed)} failed, so {attempt.result_path} may be of an earlier start",
                "clear the submitting task: the same job again changes nothing",
            )
        return outcome

    def _missing(
        self, context: Context, attempt: JobAttempt, states: dict[str, str], failed: list[str]
    ) -> NoReturn:
        path = attempt.result_path
        if failed:
            raise unusable(
                f"{', '.join(failed)} failed, and the job has left no result at {path}",
                "see the log of that task, and clear it",
            )
        if states and all(state == "skipped" for state in states.values()):
            raise AirflowSkipException("the job was not submitted")
        if attempt.has_died():
            last = attempt.last_sign()
            # The next start may be queued for longer than a living one is silent.
            attempt.forget()
            raise unusable(
                f"the job has left no result at {path}, and was last seen at work at "
                f"{last:%Y-%m-%d %H:%M:%S} UTC",
                "clear the submitting task: the next start is the next attempt of the same run",
            )
        trigger = None
        if self._deferrable:
            from capstan.airflow.tasks.lake_triggers import ResultTrigger

            trigger = partial(ResultTrigger, attempt=self.attempt)
        self.wait_for_more(context, f"there is no result at {path}", trigger)
        raise unusable(
            f"the job has left no result at {path}",
            "give it --lake and --attempt of this task; if the submitting task does not wait for "
            "its end, give this task patience",
        )

    def _upstream(self, context: Context) -> dict[str, str]:
        """The states of the tasks directly before this one, by id."""
        ti, tasks = context["ti"], sorted(self.upstream_task_ids)
        if not tasks:
            return {}
        found = ti.get_task_states(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id])
        states: dict[str, str] = dict(found.get(ti.run_id, {}))
        # Of mapped tasks, that of the same index; of others, and for a task that is not, all.
        own = {*tasks, *(f"{task}_{ti.map_index}" for task in tasks)}
        mapped = ti.map_index is not None and ti.map_index >= 0
        return {name: state for name, state in states.items() if not mapped or name in own}
