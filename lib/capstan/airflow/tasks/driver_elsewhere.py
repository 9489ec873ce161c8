"""Drivers in cluster mode: how they are submitted, and what tasks find of them in the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.sdk.exceptions import AirflowException

from capstan.airflow.tasks.failures import broken
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.storage.job_attempts import JobAttempt, JobOutcome

# By default spark-submit waits for the end of the driver.
UNWAITED: Final = {
    "spark.kubernetes.submission.waitAppCompletion": "false",
    "spark.yarn.submit.waitAppCompletion": "false",
    # YARN would run the same job again after its failure, and delete the result of the first.
    "spark.yarn.maxAppAttempts": "1",
}
ON_CLUSTER: Final = "its log on the cluster"


def outcome_of(attempt: JobAttempt, request: Json) -> JobOutcome:
    """How the job with a request has ended; the next try submits it again if that is not known."""
    try:
        outcome = attempt.outcome()
    except InvalidRequestError:
        attempt.clear()  # Nobody can take it, and it would stand in the way of the next one.
        raise
    if outcome is None:
        raise silent(attempt)
    if not outcome.answers(request):
        attempt.begin()
        raise broken(f"{attempt.result_path} is of another request of this task", ON_CLUSTER)
    return outcome


def silent(attempt: JobAttempt) -> AirflowException:
    """The exception for a driver that has not begun, or died; the next try submits the job."""
    last, has = attempt.last_sign(), "not begun" if attempt.is_queued() else "been silent"
    attempt.forget()
    seen = "" if last is None else f", and has {has} since {last:%Y-%m-%d %H:%M:%S} UTC"
    return broken(f"the driver has left no result at {attempt.result_path}{seen}", ON_CLUSTER)
