"""The DAG `capstan_attention`: tells notifiers what has come to need a person.

It looks every quarter of an hour, without Spark, and compares with what it found at the last look.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.defaults import new_dag, task_arguments
from capstan.airflow.dags.notifications import tell
from capstan.airflow.lake_files import remember_attention, told_attention
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task
from capstan.airflow.tasks.telemetry import send_attention

_MOST = 1_000
"""The entries of each kind that are compared; the newest runs are among them."""


class AttentionOperator(CapstanOperator):
    """Lists what needs a person, and tells notifiers what was not there at the last look.

    Its XCom is the list, as `capstan status --json` has it, with the keys of what is `new`.
    """

    ui_color = "#f3ecd2"

    def execute(self, context: Context) -> dict[str, object]:
        """Look, tell, and remember what was found."""
        from capstan.airflow.tasks.run_progress import inform, seen_by_task
        from capstan.reporting.attention.gather import FEW, read_attention
        from capstan.storage.lake import Lake, exists

        settings = self.settings
        lake = Lake.at(settings.lake)
        with as_task():
            if not exists(lake.root):
                raise AirflowSkipException("there is no lake yet")
            informed = partial(inform, look=seen_by_task(context["ti"]))
            listed = read_attention(lake, settings.declarations, _MOST, informed)
            before = told_attention(settings)
            # More intervals than before are new ones, even if others were there.
            new = [item for item in listed.items if item.number > before.get(item.key, 0)]
            shown = listed.first(FEW)
            for item in shown.items:
                self.log.info("%s", item.line)
            self.log.info("%s", shown.more or f"{listed.total} in all, {len(new)} of them new")
            send_attention(settings, listed)
            # Whoever was told twice knows no less; so it is remembered afterwards.
            tell(settings, context, new)
            remember_attention(settings, {item.key: item.number for item in listed.items})
        return {**shown.to_json(), "new": [item.key for item in new[:_MOST]]}


def attention_dags(settings: Settings) -> Iterator[DAG]:
    """The DAG that tells what has come to need a person."""
    with new_dag(
        settings,
        "attention",
        description="Tell notifiers what has come to need a person",
        doc_md=docs.ATTENTION,
        schedule=timetables.quarter_hourly(),
        # Two looks at once would both find the same new.
        max_active_runs=1,
        tag="attention",
    ) as dag:
        # A second try would tell again what the first one has told.
        AttentionOperator(**{**task_arguments(settings, "look"), "retries": 0})
    yield dag
