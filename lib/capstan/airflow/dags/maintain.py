"""The DAG `capstan_maintain`: small files become larger ones, what is over is cleared away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, BaseOperator, Context, Param

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.markdown import markdown_cell
from capstan.airflow.operators.failures import as_task, say_last
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.errors import CapstanError, CheckFailedError

DAG_ID = "capstan_maintain"


class MaintainOperator(CapstanSubmitOperator):
    """Submits the maintenance of the streams that the run's parameters choose."""

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Prepare a maintenance."""
        super().__init__(
            app="maintain",
            setting=setting,
            request={},
            show=maintained_markdown,
            **rest,  # type: ignore[arg-type]
        )

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Maintain; what was done."""
        params = context["params"]
        self.request = {
            "streams": params.get("streams") or None,
            "keep": params.get("keep") or self._setting.keep,
        }
        return super().execute(context)


class WatchOperator(BaseOperator):
    """Looks whether the frontiers of streams move that declare `stalled_after`, without Spark.

    A capture looks after itself; this one speaks also where captures fail, or are paused. It fails
    with `CAP-STALLED`, without a retry.
    """

    ui_color = "#f3ecd2"

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Prepare a task that looks at all declared streams of which something is on tape."""
        rest.setdefault("on_failure_callback", say_last)
        super().__init__(**rest)  # type: ignore[arg-type]
        self._setting = setting

    def execute(self, context: Context) -> list[str]:
        """Look; the streams whose frontier moves."""
        from capstan.airflow.lake_queries import require_moving, taped

        moving: list[str] = []
        found: dict[str, CapstanError] = {}
        with as_task():
            for stream in taped(self._setting, watched(self._setting)):
                try:
                    require_moving(self._setting, stream)
                except CapstanError as error:
                    # Also of a tape that cannot be read: it hides nothing of the others.
                    self.log.warning("%s", error)
                    found[stream] = error
                else:
                    moving.append(stream)
            if found:
                raise _over_all(found)
        return moving


def _over_all(found: Mapping[str, CapstanError]) -> CapstanError:
    """One error for those of several streams; one that something broke comes first."""
    broken = [error for error in found.values() if not isinstance(error, CheckFailedError)]
    if broken or len(found) == 1:
        return next(iter((*broken, *found.values())))
    said = f"{len(found)} streams stand still: {', '.join(found)}"
    hint = next(iter(found.values())).hint
    return CheckFailedError("CAP-STALLED", said, hint, concerned=list(found))


def watched(setting: Settings) -> list[str]:
    """The declared streams whose frontier may stand still only so long."""
    streams = setting.declarations.streams.values()
    return [stream.name for stream in streams if stream.stalled_after is not None]


def maintain_dags(setting: Settings) -> Iterator[DAG]:
    """The DAG that maintains, daily and by hand."""
    with DAG(
        DAG_ID,
        description="Compact and clean up tapes and ledgers",
        doc_md=docs.MAINTAIN + docs.FAILURES,
        schedule=timetables.daily(),
        start_date=timetables.BEGINNING,
        catchup=False,
        # Two at once would only do the same work twice.
        max_active_runs=1,
        params=_form(setting),
        tags=["capstan", "maintain"],
    ) as dag:
        MaintainOperator(
            task_id="maintain",
            setting=setting,
            doc_md=docs.TASKS["maintain"],
            **task_defaults(setting, over_all=True),
        )
        if watched(setting):
            WatchOperator(
                task_id="watch",
                setting=setting,
                doc_md=docs.TASKS["watch"],
                **task_defaults(setting, over_all=True),
            )
    yield dag


def maintained_markdown(found: Mapping[str, object]) -> str:
    """What maintenance did, as `Maintained.to_json` gives it."""
    lines = [
        "## Maintenance",
        "",
        "| stream | table | files before | files | bytes | rewritten | vacuumed | damaged |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    tables = found.get("tables")
    for each in tables if isinstance(tables, list) else ():
        names = ("table", "files_before", "files", "bytes", "rewritten", "vacuumed")
        damaged = ", ".join(f"{first} to {last}" for first, last in each["damaged"])
        cells = [each["stream"] or "", *(each[name] for name in names), damaged]
        lines.append("| " + " | ".join(map(markdown_cell, cells)) + " |")
    busy = found.get("busy")
    for each in busy if isinstance(busy, list) else ():
        lines += ["", f"passed over: {markdown_cell(each['message'])}"]
    for name in ("failed", "violations"):
        errors = found.get(name)
        for each in errors if isinstance(errors, list) else ():
            lines += ["", f"**{each['error']}**: {markdown_cell(each['message'])}"]
    if "message" in found and not found.get("failed") and found.get("error") != "CAP-VIOLATION":
        lines += ["", f"**{found['error']}**: {markdown_cell(found['message'])}"]
    return "\n".join(lines)


def _form(setting: Settings) -> Mapping[str, Param]:
    return {
        "streams": Param(
            None,
            type=["array", "null"],
            items={"type": "string"},
            examples=list(setting.declarations.streams),
            title="Streams",
            description_md="Streams whose tapes are kept up; empty for all that are on tape.",
        ),
        "keep": Param(
            setting.keep,
            type="string",
            minLength=1,
            title="Keep",
            description_md="How long what was rejected, has failed or was killed stays in staging.",
        ),
    }
