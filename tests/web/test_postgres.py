"""Airflow over a PostgreSQL of one's own: the one of the system's packages, with a password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg2
import pytest

if TYPE_CHECKING:
    from conftest import World


@pytest.mark.nightly
def test_the_main_job_runs_over_a_postgresql_of_ones_own(on_postgres: World) -> None:
    world = on_postgres
    world.capture()
    found = world.replay(
        into="daily", transform="flights_by_day", since="2013-01-01", until="2013-01-03"
    )
    audit = found["audit"]
    assert isinstance(audit, dict)
    assert (found["published"], audit["passed"]) == (True, True)
    assert len(world.rows("daily")) == 6
    # It is there that Airflow keeps what it knows, and the launcher has started no other one.
    assert world.database is not None
    with psycopg2.connect(world.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT dag_id, state FROM dag_run WHERE dag_id = %s", ("capstan_replay",))
        assert cursor.fetchall() == [("capstan_replay", "success")]
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 'airflow'")
        assert cursor.fetchone()[0] > 1
    assert "postgres" not in world.launched.home.recorded()
    assert not (world.launched.home.folder / "postgres" / "data").exists()
