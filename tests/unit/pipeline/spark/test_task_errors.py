"""Errors of tasks on their way to the driver."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException

from capstan.errors import CapstanError
from capstan.pipeline.graph.errors import OperatorFailed, SchemaMismatch
from capstan.pipeline.spark.task_errors import TaskFailed, in_task, on_driver

FAILED = OperatorFailed.create(
    "f failed\nat time 3: {odd}", node="f", time=3, worker=1, port=0, cause="ValueError: {odd}\n}"
)
MISMATCH = SchemaMismatch.create(
    "rows at in have no columns", source="in", target="in", reason="none"
)


def sent(error: CapstanError) -> PythonException:
    """What Spark makes of an error in a task: the text of a traceback."""
    with pytest.raises(TaskFailed) as failed, in_task():
        raise error
    text = f'Traceback:\n  File "x"\ncapstan.pipeline.failing.TaskFailed: {failed.value}\n at {{}}'
    return PythonException(f"[PYTHON_EXCEPTION] An exception was thrown: {text}\n\tat Foo(Bar)}}")


@pytest.mark.parametrize("error", [FAILED, MISMATCH])
def test_an_error_arrives_whole(error: CapstanError) -> None:
    arrived = sent(error)
    with pytest.raises(type(error)) as actual, on_driver():
        raise arrived
    assert actual.value.to_json() == error.to_json()
    assert type(actual.value) is type(error)
    assert actual.value.__cause__ is arrived


def test_other_errors_stay_what_they_are() -> None:
    other = PythonException("Traceback: ZeroDivisionError")
    with pytest.raises(PythonException) as actual, on_driver():
        raise other
    assert actual.value is other
    with pytest.raises(ZeroDivisionError), in_task():
        raise ZeroDivisionError
