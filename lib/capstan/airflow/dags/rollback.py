"""The DAG `capstan_rollback`, triggered by hand: what a run has published is taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, Context, Param

from capstan.airflow.assets import REPLAYED, tell_tables
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.markdown import rollback_markdown
from capstan.airflow.operators.failures import as_task
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings

DAG_ID = "capstan_rollback"


class RollbackOperator(CapstanSubmitOperator):
    """Submits the rollback of the run that the parameters name; what cannot be one starts no Spark.

    The event of the table's asset has what the app says: `rolled_back`, the run, and the version
    that has the rows of before.
    """

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Prepare a rollback; which table it changes becomes known through an alias."""
        super().__init__(
            app="rollback",
            setting=setting,
            request={},
            show=rollback_markdown,
            outlets=[REPLAYED],
            **rest,  # type: ignore[arg-type]
        )

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Take the run back; what that came to."""
        from capstan.jobs.rollback_runs import RollbackRequest, require_reversible
        from capstan.storage.lake import Lake

        with as_task():
            asked = RollbackRequest(str(context["params"]["run"]).strip())
            require_reversible(Lake.at(self._setting.lake), asked.run)
        self.request = {"run": asked.run}
        return super().execute(context)

    def tell_assets(self, context: Context, result: Mapping[str, object]) -> None:
        """Tell the table's asset that it has changed; nothing where it was taken back before."""
        if result.get("stood"):
            self.outlets = []
            return
        tell_tables(context, self.outlets, result.get("target"), result)


def rollback_dags(setting: Settings) -> Iterator[DAG]:
    """The DAG that takes a run back; none where no stream is declared."""
    if not setting.declarations.streams:
        return
    with DAG(
        DAG_ID,
        description="Take back what a run has published",
        doc_md=docs.ROLLBACK + docs.FAILURES,
        schedule=None,
        start_date=timetables.BEGINNING,
        catchup=False,
        max_active_runs=4,
        # Nothing starts it but a person, who should not have to find out why it does not run.
        is_paused_upon_creation=False,
        params={
            "run": Param(
                type="string",
                minLength=1,
                title="Run",
                description_md="The run, as the page and `capstan runs` name it.",
            )
        },
        tags=["capstan", "replay"],
    ) as dag:
        RollbackOperator(
            task_id="rollback",
            setting=setting,
            doc_md=docs.TASKS["rollback"],
            **task_defaults(setting),
        )
    yield dag
