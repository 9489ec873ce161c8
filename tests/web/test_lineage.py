"""What a real Airflow tells OpenLineage where nobody is to be told; see `test_postgres` besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import World

REPLAY = "capstan_replay"


def test_nothing_is_said_where_nobody_is_to_be_told(
    captured: World, whole: dict[str, object]
) -> None:
    for task in ("plan", "replay", "certificate"):
        printed = captured.rest.log(REPLAY, str(whole["dag_run"]), task)
        assert printed
        assert "openlineage" not in printed.lower()
