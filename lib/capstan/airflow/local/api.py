"""Client of Airflow's API: readiness, and the pool of Spark apps."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from datetime import UTC, datetime

from capstan.airflow.local.home import USER
from capstan.airflow.local.settings import LOOPBACK
from capstan.errors import SystemFailureError

_PARTS = ("metadatabase", "scheduler", "dag_processor")


def unready(port: int, since: datetime) -> list[str]:
    """The components that are not ready yet, including the API; empty when all are.

    Args:
        port: The port of the API, on loopback.
        since: The time of the start; earlier heartbeats do not count.
    """
    status, report = _call(port, "GET", "/api/v2/monitor/health")
    if status != http.client.OK or not isinstance(report, dict):
        return ["api-server"]
    return [part for part in _PARTS if not _healthy(part, report.get(part), since)]


def make_pool(port: int, password: str, name: str, slots: int) -> bool:
    """Create a pool if it does not exist; returns whether it was created."""
    given = {"username": USER, "password": password}
    status, answer = _call(port, "POST", "/auth/token", given)
    if isinstance(answer, dict) and "access_token" in answer:
        about = "Tasks that start Spark: the number of concurrent apps on this machine"
        pool = {"name": name, "slots": slots, "description": about, "include_deferred": False}
        token = str(answer["access_token"])
        status, answer = _call(port, "POST", "/api/v2/pools", pool, token)
    if status not in (http.client.OK, http.client.CREATED, http.client.CONFLICT):
        raise SystemFailureError(
            "CAP-AIRFLOW",
            f"Airflow does not create the pool {name!r}: {status}, {str(answer)[:300]}",
            "create it by hand, under Admin, Pools",
        )
    return status != http.client.CONFLICT


def _call(
    port: int, method: str, path: str, body: Mapping[str, object] | None = None, token: str = ""
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


def _healthy(part: str, report: object, since: datetime) -> bool:
    if not isinstance(report, dict) or report.get("status") != "healthy":
        return False
    beat = report.get(f"latest_{part}_heartbeat")
    if beat is None:
        return part == "metadatabase"
    moment = datetime.fromisoformat(str(beat))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) >= since
