"""The DAG `capstan_audit`: audits everything that is published against the tape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, BaseOperator, Context, Param, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.form import list_field, number_field, switch
from capstan.airflow.dags.new_dag import new_dag
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.markdown import audits_markdown
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.failures import as_task, set_usual

_AGAINST = "Against a stream"


class ListAuditsOperator(BaseOperator):
    """Lists published runs to audit; skips downstream tasks if there are none.

    If the parameters name a stream, the target is audited against it, whatever wrote its rows.

    XComs: `request`, the request of the job `audit`; `count`, the number of audits; `left_out`,
    the published runs that are not among them.
    """

    ui_color = "#f3ecd2"

    def __init__(self, *, settings: Settings, **rest: object) -> None:
        """Create a task that lists the audits that the run's parameters choose."""
        set_usual(rest, multiple_outputs=True)
        super().__init__(**rest)  # type: ignore[arg-type]
        self._settings = settings

    def execute(self, context: Context) -> dict[str, object]:
        """List published runs, and return the request of the job."""
        from capstan.airflow.lake_queries import list_audits, table_audit_request

        params = context["params"]
        with as_task():
            if params.get("stream"):
                return {
                    "request": table_audit_request(self._settings, params),
                    "count": 1,
                    "left_out": [],
                }
            listing = list_audits(
                self._settings, params.get("target"), params.get("runs"), params.get("newest")
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
        doc_md=docs.AUDIT + docs.FAILURES,
        schedule=timetables.daily(),
        max_active_runs=1,
        params=_form(settings),
        tag="audit",
    ) as dag:
        audits = ListAuditsOperator(
            task_id="plan",
            settings=settings,
            doc_md=docs.TASKS["audits"],
            **task_defaults(settings, over_all=True),
        )
        audit = CapstanSubmitOperator(
            task_id="audit",
            app="audit",
            settings=settings,
            request=XComArg(audits, "request"),
            render=audits_markdown,
            doc_md=docs.TASKS["audit"],
            **task_defaults(settings, over_all=True),
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
