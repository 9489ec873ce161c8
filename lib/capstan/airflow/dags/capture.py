"""DAGs `capstan_capture__<stream>`: capture of a declared stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow.sdk import DAG

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.declaration_errors import sound
from capstan.airflow.dags.new_dag import new_dag
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.operators.capture import CaptureOperator
from capstan.airflow.settings import Settings
from capstan.core.config import Stream


def capture_dags(settings: Settings) -> Iterator[DAG]:
    """A DAG for each declared stream; without a schedule, it is triggered by hand."""
    for stream in settings.declarations.streams.values():
        yield from sound(partial(_dag, settings, stream))


def _dag(settings: Settings, stream: Stream) -> DAG:
    about = docs.CAPTURE.format(stream=stream.name, description=stream.description)
    with new_dag(
        settings,
        "capture",
        stream.name,
        description=f"Capture {stream.name}: {stream.description}".rstrip(": "),
        doc_md=about + docs.FAILURES,
        schedule=timetables.of_stream(settings, stream),
        # Only one capture of a stream can run at a time.
        max_active_runs=1,
        tag="capture",
    ) as dag:
        CaptureOperator(
            task_id="capture",
            settings=settings,
            stream=stream.name,
            doc_md=docs.TASKS["capture"],
            **task_defaults(settings, stream.notify, ("streams", stream.name, "notify")),
        )
    return dag
