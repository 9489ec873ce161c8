"""The DAG `capstan_audit`: audits everything that is published against the tape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, Context, Param, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.assets import declared_tables
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.defaults import new_dag, task_arguments
from capstan.airflow.dags.form import list_field, number_field, switch
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task

_AGAINST = "Against a stream"


class ListAuditsOperator(CapstanOperator):
    """Lists published runs to audit; skips downstream tasks if there are none.

    If the parameters name a stream, the target is audited against it, whatever wrote its rows.

    XComs: `request`, the request of the job `audit`; `count`, the number of audits; `left_out`,
    the published runs that are not among them.
    """

    ui_color = "#f3ecd2"

    def execute(self, context: Context) -> dict[str, object]:
        """List published runs, and return the request of the job."""
        from capstan.airflow.lake_queries import list_audits, table_audit_request

        params = context["params"]
        with as_task():
            if params.get("stream"):
                return {
                    "request": table_audit_request(self.settings, params),
                    "count": 1,
                    "left_out": [],
                }
            listing = list_audits(
                self.settings, params.get("target"), params.get("runs"), params.get("newest")
            )
        if not listing.audits:
            raise AirflowSkipException("nothing is published")
        for audit in listing.audits:
            version = "as it is now" if audit["version"] is None else f"version {audit['version']}"
            self.log.info("%s, %s", audit["run"], version)
        if listing.left_out:
            names = ", ".join(listing.left_out)
            self.log.warning("`newest` leaves out %d more: %s", len(listing.left_out), names)
        return {
            "request": {"audits": list(listing.audits), "strict": bool(params.get("strict"))},
            "count": len(listing.audits),
            "left_out": list(listing.left_out),
        }


def audit_dags(settings: Settings) -> Iterator[DAG]:
    """The DAG that audits published runs, daily and by hand."""
    with new_dag(
        settings,
        "audit",
        description="Audit published tables again, against the tape",
        doc_md=docs.AUDIT,
        schedule=timetables.daily(),
        max_active_runs=1,
        params=_form(settings),
        tag="audit",
    ) as dag:
        audits = ListAuditsOperator(
            multiple_outputs=True, **task_arguments(settings, "plan", text="audits")
        )
        audit = CapstanSubmitOperator(
            app="audit",
            request=XComArg(audits, "request"),
            # Airflow gives an asset that it hears of by an alias alone no group of Capstan's.
            inlets=declared_tables(settings.declarations),
            **task_arguments(settings, "audit"),
        )
        audits >> audit
    yield dag


def _column(title: str, content: str) -> Param:
    return Param(
        None,
        type=["string", "null"],
        title=title,
        section=_AGAINST,
        description_md=f"The target's {content} column. Empty: the declared one.",
    )


def _form(settings: Settings) -> Mapping[str, Param]:
    declared = settings.declarations
    targets = {
        **declared.targets,
        **{replay.target: replay for replay in declared.replays.values()},
    }
    return {
        "target": Param(
            None,
            type=["string", "null"],
            examples=list(targets),
            title="Target",
            description_md="A table of the lake or a declared target. Empty: all.",
        ),
        "runs": list_field("Runs", "Names of runs, from `capstan runs`. Empty: all.", None),
        "newest": number_field(
            "Newest", "Audit at most this many of each table's newest runs. Empty: all.", None, 1
        ),
        "strict": switch("Strict", "Also fail if a run can no longer be audited.", None),
        "stream": Param(
            None,
            type=["string", "null"],
            enum=[None, *declared.streams],
            title="Stream",
            section=_AGAINST,
            description_md="The stream whose rows the target should have, whatever wrote them.",
        ),
        "worker_column": _column("Worker column", "worker"),
        "time_column": _column("Time column", "time"),
        "columns": list_field(
            "Columns",
            "Columns to compare. Empty: all columns of the stream that the target has.",
            _AGAINST,
        ),
        "version": number_field("Version", "The target's version. Empty: the newest.", _AGAINST),
    }
