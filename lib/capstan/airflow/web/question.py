"""What Airflow asks about a run that waits for approval, and what has come of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import select

from capstan.reporting.activity import Activity
from capstan.reporting.airflow_paths import decision_path, task_beside, task_path
from capstan.storage.ledger.made_by import MadeBy

# Airflow 3.2 knows the second one alone.
_ASKING = frozenset({"awaiting_input", "deferred"})
_LOST = State.finished - {TaskInstanceState.SUCCESS}


@dataclass(frozen=True, slots=True)
class Question:
    """The question whether to publish a run.

    Attributes:
        place: Where the API takes an answer.
        task: The task that asks, or else carries the answer out: its id without a group.
        page: The page of that task, below the address of Airflow's UI.
        state: That of the task; empty before it has begun, or if Airflow does not know it.
        answer: What somebody has chosen; empty before.
        by: Who has; empty before, and if nobody did in time.
        at: When.
        may_answer: Whether the user may.
        may_approve: Whether the user may approve, who may answer.
    """

    place: str
    task: str
    page: str
    state: str = ""
    answer: str = ""
    by: str = ""
    at: datetime | None = None
    may_answer: bool = False
    may_approve: bool = False

    @property
    def is_open(self) -> bool:
        """Whether Airflow takes an answer."""
        return self.state in _ASKING and self.at is None

    @property
    def is_unknown(self) -> bool:
        """Whether the task has not begun, or Airflow does not know it any more."""
        return not self.state and self.at is None

    @property
    def is_lost(self) -> bool:
        """Whether the task has ended, and left the run waiting."""
        return self.state in _LOST

    @property
    def activity(self) -> Activity | None:
        """What goes on with the run: an answer is carried out at once."""
        if self.is_lost:
            return None
        return Activity.QUEUED if self.at is not None else Activity.WAITING


def ask(by: MadeBy) -> Question:
    """The question about a run that a task has left waiting, as Airflow's database has it."""
    asking, publishing = (task_beside(by, name) for name in ("approve", "publish"))
    query = (
        select(TaskInstance.task_id, TaskInstance.state, HITLDetail)
        .outerjoin(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .where(
            TaskInstance.dag_id == by.dag,
            TaskInstance.run_id == by.dag_run,
            TaskInstance.task_id.in_((asking, publishing)),
            TaskInstance.map_index == by.map_index,
        )
    )
    with create_session() as session:
        found = {task: (state, detail) for task, state, detail in session.execute(query)}
        state, detail = found.get(asking, (None, None))
        task = asking
        if state == TaskInstanceState.SUCCESS:
            task, (state, _) = publishing, found.get(publishing, (None, None))
        asked = Question(
            decision_path(by),
            task.rpartition(".")[2],
            task_path(by.dag, by.dag_run, task, by.map_index),
            state or "",
        )
        if detail is None or detail.responded_at is None:
            return asked
        user = detail.responded_by or {}
        return replace(
            asked,
            answer=", ".join(detail.chosen_options or ()),
            by=user.get("name") or user.get("id") or "",
            at=detail.responded_at,
        )
