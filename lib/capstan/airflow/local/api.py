"""Client of Airflow's API: readiness, and the pool of Spark jobs."""

from __future__ import annotations

import http.client
import json
from datetime import datetime

from capstan.airflow.local.home import USER
from capstan.airflow.local.settings import LOOPBACK
from capstan.core.json_object import Json
from capstan.errors import SystemFailureError


def unready(port: int, since: datetime) -> list[str]:
    """The components without a heartbeat since the start, and the API if it does not answer."""
    status, report = _call(port, "GET", "/api/v2/monitor/health")
    if status != http.client.OK or not isinstance(report, dict):
        return ["api-server"]
    return [
        part
        for part in ("metadatabase", "scheduler", "dag_processor")
        if not _healthy(report.get(part), f"latest_{part}_heartbeat", since)
    ]


def _healthy(report: object, heartbeat: str, since: datetime) -> bool:
    if not isinstance(report, dict) or report.get("status") != "healthy":
        return False
    # The database has none.
    if heartbeat not in report:
        return heartbeat == "latest_metadatabase_heartbeat"
    beat = report[heartbeat]
    return beat is not None and datetime.fromisoformat(str(beat)) >= since


def make_pool(port: int, password: str, name: str, slots: int) -> None:
    """Create a pool if it does not exist."""
    credentials = {"username": USER, "password": password}
    status, answer = _call(port, "POST", "/auth/token", credentials)
    if isinstance(answer, dict) and "access_token" in answer:
        about = "Tasks that start Spark: the number of concurrent jobs on this machine"
        pool = {"name": name, "slots": slots, "description": about, "include_deferred": False}
        status, answer = _call(port, "POST", "/api/v2/pools", pool, str(answer["access_token"]))
    if status not in (http.client.OK, http.client.CREATED, http.client.CONFLICT):
        problem = f"Airflow does not create the pool {name!r}: {status}, {str(answer)[:300]}"
        hint = "create it by hand, under Admin, Pools"
        raise SystemFailureError("CAP-AIRFLOW", problem, hint)


def _call(
    port: int, method: str, path: str, body: Json | None = None, token: str = ""
) -> tuple[int, object]:
    """Status and body of a response; 0 and the error when there is none."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, error
    finally:
        connection.close()
