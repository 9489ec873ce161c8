"""The DAG `capstan_rollback`, triggered by hand: rolls back a run."""

from __future__ import annotations

from collections.abc import Iterator

from airflow.sdk import DAG, Context, Param

from capstan.airflow.assets import REPLAYED
from capstan.airflow.dags import docs
from capstan.airflow.dags.new_dag import new_dag
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.markdown import rollback_markdown
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.failures import as_task


class RollbackOperator(CapstanSubmitOperator):
    """Submits the rollback of a run; an impossible rollback is refused before Spark starts.

    The event of the table's asset carries the job's result: `rolled_back`, the run, and the
    version with the previous rows.
    """

    def __init__(self, *, settings: Settings, **rest: object) -> None:
        """Create a rollback task; its table is added to an alias at run time."""
        super().__init__(
            app="rollback",
            settings=settings,
            request={},
            render=rollback_markdown,
            outlets=[REPLAYED],
            **rest,  # type: ignore[arg-type]
        )

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Roll the run back, and return the job's result."""
        from capstan.jobs.finished_runs import RollbackRequest, require_reversible
        from capstan.storage.lake import Lake

        with as_task():
            request = RollbackRequest(str(context["params"]["run"]).strip())
            require_reversible(Lake.at(self.settings.lake), request.run)
        self.request = {"run": request.run}
        return super().execute(context)


def rollback_dags(settings: Settings) -> Iterator[DAG]:
    """The DAG that rolls back a run; none if no stream is declared."""
    if not settings.declarations.streams:
        return
    with new_dag(
        settings,
        "rollback",
        description="Roll back what a run published",
        doc_md=docs.ROLLBACK + docs.FAILURES,
        schedule=None,
        max_active_runs=4,
        # Only a person starts it, and should not have to unpause it first.
        is_paused_upon_creation=False,
        params={
            "run": Param(
                type="string",
                minLength=1,
                title="Run",
                description_md="The run's name, from the page *Capstan* or `capstan runs`.",
            )
        },
        tag="replay",
    ) as dag:
        RollbackOperator(
            task_id="rollback",
            settings=settings,
            doc_md=docs.TASKS["rollback"],
            **task_defaults(settings),
        )
    yield dag
