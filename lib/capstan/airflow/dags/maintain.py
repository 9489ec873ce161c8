"""The DAG `capstan_maintain`: compaction, clean-up and verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, Context, Param

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.defaults import new_dag, task_arguments
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task
from capstan.errors import CapstanError, CheckFailedError


class MaintainOperator(CapstanSubmitOperator):
    """Submits the maintenance of the streams that the run's parameters choose."""

    job = "maintain"

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Maintain, and return the job's result."""
        params = context["params"]
        self.request = {
            "streams": params.get("streams") or None,
            "keep": params.get("keep") or self.settings.keep,
        }
        return super().execute(context)


class WatchOperator(CapstanOperator):
    """Checks that the frontiers of streams with `stalled_after` move, without Spark.

    Captures check their own stream; this task also notices when captures fail or are paused. It
    fails with `CAP-STALLED`, without a retry.
    """

    ui_color = "#f3ecd2"

    def execute(self, context: Context) -> list[str]:
        """Check, and return the streams whose frontier moves."""
        from capstan.airflow.lake_queries import captured_streams, require_moving

        moving: list[str] = []
        errors: dict[str, CapstanError] = {}
        with as_task():
            for stream in captured_streams(self.settings, watched(self.settings)):
                try:
                    require_moving(self.settings, stream)
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
        doc_md=docs.MAINTAIN,
        schedule=timetables.daily(),
        # Two concurrent runs would do the same work twice.
        max_active_runs=1,
        params=_form(settings),
        tag="maintain",
    ) as dag:
        MaintainOperator(**task_arguments(settings, "maintain"))
        if watched(settings):
            WatchOperator(**task_arguments(settings, "watch"))
    yield dag


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
