"""The DAG `capstan_audit`: what was published and stands is held against the tape again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, BaseOperator, Context, Param, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.form import list_field, number_field, switch
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.markdown import audits_markdown
from capstan.airflow.operators.failures import as_task, say_last
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings

DAG_ID = "capstan_audit"
_AGAINST = "Against a stream"


class ListAuditsOperator(BaseOperator):
    """Lists what replays have published and still stands; skips all that follows if nothing does.

    Where a stream is named, what is audited is the target, whoever has put its rows there.

    It leaves XComs: `request`, for the app `audit`, `count`, how many audits that is, and
    `left_out`, the runs that stand and are not among them.
    """

    ui_color = "#f3ecd2"

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Prepare a task that lists audits, as the run's parameters choose them."""
        rest.setdefault("on_failure_callback", say_last)
        rest.setdefault("multiple_outputs", True)
        super().__init__(**rest)  # type: ignore[arg-type]
        self._setting = setting

    def execute(self, context: Context) -> dict[str, object]:
        """List what stands; the request of the app."""
        from capstan.airflow.lake_queries import against, auditable

        params = context["params"]
        with as_task():
            if params.get("stream"):
                return {"request": against(self._setting, params), "count": 1, "left_out": []}
            found = auditable(
                self._setting, params.get("target"), params.get("runs"), params.get("newest")
            )
        if not found.audits:
            raise AirflowSkipException("nothing that was published stands")
        for each in found.audits:
            version = "as it is now" if each["version"] is None else f"version {each['version']}"
            self.log.info("%s, %s", each["run"], version)
        if found.left_out:
            said = "%d more stand, and are left out by `newest`: %s"
            self.log.warning(said, len(found.left_out), ", ".join(found.left_out))
        return {
            "request": {"audits": list(found.audits), "strict": bool(params.get("strict"))},
            "count": len(found.audits),
            "left_out": list(found.left_out),
        }


def audit_dags(setting: Settings) -> Iterator[DAG]:
    """The DAG that audits, daily and by hand."""
    with DAG(
        DAG_ID,
        description="Audit again what was published, against the tape",
        doc_md=docs.AUDIT + docs.FAILURES,
        schedule=timetables.daily(),
        start_date=timetables.BEGINNING,
        catchup=False,
        max_active_runs=1,
        params=_form(setting),
        tags=["capstan", "audit"],
    ) as dag:
        audits = ListAuditsOperator(
            task_id="plan",
            setting=setting,
            doc_md=docs.TASKS["audits"],
            **task_defaults(setting, over_all=True),
        )
        audit = CapstanSubmitOperator(
            task_id="audit",
            app="audit",
            setting=setting,
            request=XComArg(audits, "request"),
            show=audits_markdown,
            doc_md=docs.TASKS["audit"],
            **task_defaults(setting, over_all=True),
        )
        audits >> audit
    yield dag


def _column(title: str, what: str) -> Param:
    return Param(
        None,
        type=["string", "null"],
        title=title,
        section=_AGAINST,
        description_md=f"The target's column of the {what}; empty for the declared one.",
    )


def _form(setting: Settings) -> Mapping[str, Param]:
    declared = setting.declarations
    targets = {**declared.targets, **{each.target: each for each in declared.replays.values()}}
    return {
        "target": Param(
            None,
            type=["string", "null"],
            examples=list(targets),
            title="Target",
            description_md="A table of the lake or a declared target; empty for all.",
        ),
        "runs": list_field(
            "Runs", "Runs by name, as `capstan runs` shows them; empty for all.", None
        ),
        "newest": number_field(
            "Newest", "At most so many runs of each table, the newest; empty for all.", None, 1
        ),
        "strict": switch("Strict", "Fail also where a run cannot be audited any more.", None),
        "stream": Param(
            None,
            type=["string", "null"],
            enum=[None, *declared.streams],
            title="Stream",
            section=_AGAINST,
            description_md="The stream whose rows the target has to have, whoever put them there.",
        ),
        "worker_column": _column("Worker's column", "worker"),
        "time_column": _column("Time's column", "time"),
        "columns": list_field(
            "Columns",
            "Columns to compare; empty for all of the stream's that the target has.",
            _AGAINST,
        ),
        "version": number_field("Version", "The target's version; empty for the newest.", _AGAINST),
    }
