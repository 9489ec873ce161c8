"""What goes on with a run that has not ended, and how soon a page about it is out of date."""

from __future__ import annotations

import pytest

from capstan.reporting.activity import Activity, TaskProgress, activity_of, refresh_after

OVER, QUEUED, AT_WORK = TaskProgress.OVER, TaskProgress.QUEUED, TaskProgress.RUNNING


@pytest.mark.parametrize(
    ("state", "holds", "task", "expected"),
    [
        ("claimed", True, None, "running"),
        ("begun", True, None, "running"),
        ("begun", True, AT_WORK, "running"),
        # Its claim lasts for hours, but its task has ended.
        ("begun", True, OVER, "dead"),
        ("begun", True, QUEUED, "queued"),
        ("stopped", False, None, "dead"),
        ("stopped", False, OVER, "dead"),
        ("stopped", False, QUEUED, "queued"),
        ("stopped", False, AT_WORK, "running"),
        ("audited", True, OVER, "waiting"),
        ("audited", False, None, "waiting"),
        ("approved", True, None, "running"),
        ("approved", True, OVER, "dead"),
        ("approved", False, None, "dead"),
        *((ended, False, AT_WORK, None) for ended in ("published", "rejected")),
        # Airflow tries its task again.
        ("failed", False, QUEUED, "queued"),
        ("failed", False, AT_WORK, "running"),
        ("failed", False, OVER, None),
        ("failed", True, None, None),
        ("rolled back", True, None, None),
    ],
)
def test_what_goes_on_is_told_from_state_claim_and_task(
    state: str, holds: bool, task: TaskProgress | None, expected: str | None
) -> None:
    assert activity_of(state, holds=holds, task=task) == expected


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        ((), 0),
        ((None, "gap", "covered", Activity.DEAD), 0),
        ((None, Activity.WAITING), 30),
        (("waiting", "gap", "queued"), 5),
        ((Activity.RUNNING, Activity.WAITING), 5),
    ],
)
def test_a_page_is_out_of_date_while_something_runs(
    states: tuple[str | None, ...], seconds: int
) -> None:
    assert refresh_after(states) == seconds
