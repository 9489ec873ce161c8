"""Client of Airflow's API for tests: trigger, wait, clear, backfill, and read results."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlsplit

Fields = dict[str, object]
Found = TypeVar("Found")

_ENDED = ("success", "failed")


class Refused(Exception):
    """Raised when the API answers with an error.

    Attributes:
        status: The HTTP status.
        answer: The body of the answer.
    """

    def __init__(self, status: int, answer: str) -> None:
        super().__init__(f"{status}: {answer}")
        self.status = status
        self.answer = answer


@dataclass(slots=True)
class Rest:
    """The API of one Airflow.

    Attributes:
        url: Its URL.
        password: Password of the user `admin`.
    """

    url: str
    password: str
    _token: str = field(init=False, default="")

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Fields:
        """Call the API below `/api/v2`, and return its answer.

        Raises:
            Refused: When the answer is an error.
        """
        if not self._token:
            given = {"username": "admin", "password": self.password}
            self._token = str(self.send("POST", "/auth/token", given)["access_token"])
        return self.send(method, f"/api/v2{path}", body)

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Fields:
        """Send a request to any path of the server, and return its answer.

        Raises:
            Refused: When the answer is an error.
        """
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            connection.close()
        if answer.status >= 300:
            raise Refused(answer.status, text)
        value = json.loads(text) if text else {}
        return value if isinstance(value, dict) else {"value": value}

    def wait_for_dag(self, dag: str, seconds: float = 300.0) -> Fields:
        """Wait until a DAG has been parsed; returns the API's description of it."""

        def parsed() -> Fields | None:
            try:
                return self.call("GET", f"/dags/{dag}")
            except Refused as refused:
                if refused.status != 404:
                    raise
                return None

        try:
            return until(parsed, seconds)
        except AssertionError:
            raise AssertionError(f"there is no DAG {dag}: {self.import_errors()}") from None

    def import_errors(self) -> list[Fields]:
        """Errors of reading DAG files."""
        return _rows(self.call("GET", "/importErrors")["import_errors"])

    def unpause(self, dag: str) -> None:
        """Let a DAG's runs start."""
        self.call("PATCH", f"/dags/{dag}", {"is_paused": False})

    def trigger(self, dag: str, conf: Mapping[str, object] | None = None) -> str:
        """Start a run of a DAG; returns its name.

        Raises:
            Refused: With status 400 when the DAG does not accept `conf`.
        """
        body = {"conf": dict(conf or {}), "logical_date": None}
        return str(self.call("POST", f"/dags/{dag}/dagRuns", body)["dag_run_id"])

    def run(self, dag: str, conf: Mapping[str, object] | None = None) -> str:
        """Start a run of a DAG, and wait until it has succeeded; returns its name."""
        run = self.trigger(dag, conf)
        self.require(dag, run)
        return run

    def state(self, dag: str, run: str) -> str:
        """The state of a run."""
        return str(self.call("GET", f"/dags/{dag}/dagRuns/{quote(run)}")["state"])

    def wait(self, dag: str, run: str, seconds: float = 900.0) -> str:
        """Wait until a run has ended; returns its state."""

        def ended() -> str | None:
            state = self.state(dag, run)
            return state if state in _ENDED else None

        try:
            return until(ended, seconds)
        except AssertionError:
            states = {str(t["task_id"]): t["state"] for t in self.tasks(dag, run)}
            raise AssertionError(f"{dag} {run} does not end: {states}") from None

    def require(self, dag: str, run: str, seconds: float = 900.0) -> None:
        """Wait until a run has succeeded."""
        state = self.wait(dag, run, seconds)
        if state != "success":
            bad = [t for t in self.tasks(dag, run) if t["state"] in ("failed", "upstream_failed")]
            logs = [self.log(dag, run, str(t["task_id"])) for t in bad if t["state"] == "failed"]
            raise AssertionError(f"{dag} {run} is {state}:\n{chr(10).join(logs)[-6000:]}")

    def tasks(self, dag: str, run: str) -> list[Fields]:
        """The task instances of a run."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances"
        return _rows(self.call("GET", path)["task_instances"])

    def running(self, dag: str) -> list[Fields]:
        """The running task instances of a DAG, in all its runs."""
        answer = self.call("GET", f"/dags/{dag}/dagRuns/~/taskInstances?state=running&limit=100")
        return _rows(answer["task_instances"])

    def task(self, dag: str, run: str, task: str) -> Fields:
        """One task instance of a run."""
        return self.call("GET", f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{quote(task)}")

    def log(self, dag: str, run: str, task: str, attempt: int | None = None) -> str:
        """The log of a task, of its last attempt by default: one line per event."""
        number = attempt or self.task(dag, run, task)["try_number"]
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{quote(task)}/logs/{number}"
        content = self.call("GET", f"{path}?full_content=true")["content"]
        return "\n".join(str(row.get("event", "")) for row in _rows(content))

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value") -> object:
        """The XCom value of a task."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{quote(task)}/xcomEntries/{key}"
        value = self.call("GET", f"{path}?deserialize=false")["value"]
        return json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value

    def fail_task(self, dag: str, run: str, task: str) -> None:
        """Mark a task as failed; a running task is killed."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{quote(task)}"
        self.call("PATCH", path, {"new_state": "failed"})

    def clear(self, dag: str, run: str, tasks: Sequence[str]) -> None:
        """Repeat tasks of a run and their successors."""
        body = {
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": list(tasks),
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.call("POST", f"/dags/{dag}/clearTaskInstances", body)

    def backfill(self, dag: str, since: str, until: str, **more: object) -> int:
        """Backfill a DAG's intervals from `since` to `until`; returns the id of the backfill."""
        body = {"dag_id": dag, "from_date": since, "to_date": until, "dag_run_conf": {}, **more}
        return int(str(self.call("POST", "/backfills", body)["id"]))

    def runs(self, dag: str) -> list[Fields]:
        """The runs of a DAG, in order of their start."""
        runs = _rows(self.call("GET", f"/dags/{dag}/dagRuns?limit=200")["dag_runs"])
        return sorted(runs, key=lambda run: str(run["run_after"]))


def until(done: Callable[[], Found | None], seconds: float, every: float = 0.5) -> Found:
    """Call `done` every `every` seconds until it returns a result; returns that result.

    Raises:
        AssertionError: When there is none in time.
    """
    end = time.monotonic() + seconds
    while (actual := done()) is None:
        if time.monotonic() > end:
            raise AssertionError(f"no result within {seconds:.0f} s")
        time.sleep(every)
    return actual


def _rows(value: object) -> list[Fields]:
    assert isinstance(value, list)
    return [row if isinstance(row, dict) else {"event": row} for row in value]
