"""The DAG `capstan_maintain`: compaction, clean-up and verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, BaseOperator, Context, Param

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.new_dag import new_dag
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.markdown import markdown_cell, markdown_table
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.failures import as_task, set_usual
from capstan.core.json_object import Json
from capstan.errors import CapstanError, CheckFailedError


class MaintainOperator(CapstanSubmitOperator):
    """Submits the maintenance of the streams that the run's parameters choose."""

    def __init__(self, *, settings: Settings, **rest: object) -> None:
        """Create a maintenance task."""
        super().__init__(
            app="maintain",
            settings=settings,
            request={},
            render=maintained_markdown,
            **rest,  # type: ignore[arg-type]
        )

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Maintain, and return the job's result."""
        params = context["params"]
        self.request = {
            "streams": params.get("streams") or None,
            "keep": params.get("keep") or self.settings.keep,
        }
        return super().execute(context)


class WatchOperator(BaseOperator):
    """Checks that the frontiers of streams with `stalled_after` move, without Spark.

    Captures check their own stream; this task also notices when captures fail or are paused. It
    fails with `CAP-STALLED`, without a retry.
    """

    ui_color = "#f3ecd2"

    def __init__(self, *, settings: Settings, **rest: object) -> None:
        """Create a task that checks all declared streams that are on tape."""
        set_usual(rest)
        super().__init__(**rest)  # type: ignore[arg-type]
        self._settings = settings

    def execute(self, context: Context) -> list[str]:
        """Check, and return the streams whose frontier moves."""
        from capstan.airflow.lake_queries import captured_streams, require_moving

        moving: list[str] = []
        errors: dict[str, CapstanError] = {}
        with as_task():
            for stream in captured_streams(self._settings, watched(self._settings)):
                try:
                    require_moving(self._settings, stream)
                except CapstanError as error:
                    # Also for a tape that cannot be read: the other streams are still checked.
                    self.log.warning("%s", error)
                    errors[stream] = error
                else:
                    moving.append(stream)
            if errors:
                raise _combined(errors)
        return moving


def _combined(errors: Mapping[str, CapstanError]) -> CapstanError:
    """One error for several streams; a system failure takes precedence."""
    broken = [error for error in errors.values() if not isinstance(error, CheckFailedError)]
    if broken or len(errors) == 1:
        return next(iter((*broken, *errors.values())))
    problem = f"the frontiers of {len(errors)} streams do not move: {', '.join(errors)}"
    hint = next(iter(errors.values())).hint
    return CheckFailedError("CAP-STALLED", problem, hint, concerned=list(errors))


def watched(settings: Settings) -> list[str]:
    """The declared streams with `stalled_after`."""
    streams = settings.declarations.streams.values()
    return [stream.name for stream in streams if stream.stalled_after is not None]


def maintain_dags(settings: Settings) -> Iterator[DAG]:
    """The DAG that maintains the lake, daily and by hand."""
    with new_dag(
        settings,
        "maintain",
        description="Compact and clean up tapes and ledgers",
        doc_md=docs.MAINTAIN + docs.FAILURES,
        schedule=timetables.daily(),
        # Two concurrent runs would do the same work twice.
        max_active_runs=1,
        params=_form(settings),
        tag="maintain",
    ) as dag:
        MaintainOperator(
            task_id="maintain",
            settings=settings,
            doc_md=docs.TASKS["maintain"],
            **task_defaults(settings, over_all=True),
        )
        if watched(settings):
            WatchOperator(
                task_id="watch",
                settings=settings,
                doc_md=docs.TASKS["watch"],
                **task_defaults(settings, over_all=True),
            )
    yield dag


def maintained_markdown(result: Json) -> str:
    """A maintenance result (`MaintenanceResult.to_json`) as markdown."""
    names = ("stream", "table", "files_before", "files", "bytes", "rewritten", "vacuumed")
    rows = [
        (*map(entry.get, names), ", ".join(f"{a} to {b}" for a, b in entry["damaged"]))
        for entry in result.get("tables", ())
    ]
    columns = (*(name.replace("_", " ") for name in names), "damaged")
    lines = ["## Maintenance", "", *markdown_table(columns, rows)]
    for error in result.get("busy", ()):
        lines += ["", f"skipped: {markdown_cell(error['message'])}"]
    for name in ("failed", "violations"):
        for error in result.get(name, ()):
            lines += ["", f"**{error['error']}**: {markdown_cell(error['message'])}"]
    if "message" in result and not result.get("failed") and result.get("error") != "CAP-VIOLATION":
        lines += ["", f"**{result['error']}**: {markdown_cell(result['message'])}"]
    return "\n".join(lines)


def _form(settings: Settings) -> Mapping[str, Param]:
    return {
        "streams": Param(
            None,
            type=["array", "null"],
            items={"type": "string"},
            examples=list(settings.declarations.streams),
            title="Streams",
            description_md="Streams whose tapes to maintain. Empty: all that are on tape.",
        ),
        "keep": Param(
            settings.keep,
            type="string",
            minLength=1,
            title="Keep",
            description_md="How long to keep staged output of rejected, failed and killed runs.",
        ),
    }
