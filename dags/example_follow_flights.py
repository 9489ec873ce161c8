"""Example: an Airflow DAG that runs whenever a replay of the table `flights_by_day` has ended.

The event of the table's asset carries the certificate of the replay: which days were played, and
which version of the table has them. So a follower reads just what is new, at that version.
"""

from __future__ import annotations

import logging

from airflow.sdk import dag, task

from capstan.airflow.assets import table_asset

FLIGHTS_BY_DAY = table_asset("flights_by_day")

log = logging.getLogger(__name__)


@dag(
    schedule=[FLIGHTS_BY_DAY],
    catchup=False,
    tags=["capstan", "example"],
    doc_md=__doc__,
    is_paused_upon_creation=False,
)
def example_follow_flights() -> None:
    """What follows a table."""

    @task(doc_md="Finds the day with the longest mean delay among those that were just replayed.")
    def worst_day(triggering_asset_events: dict | None = None) -> list[dict]:  # type: ignore[type-arg]
        """The worst day of each replay that has changed the table since the last run."""
        import deltalake
        import pyarrow.compute as pc

        found = []
        for event in (triggering_asset_events or {}).get(FLIGHTS_BY_DAY, []):
            played = event.extra
            if not played.get("published") or played.get("stood"):
                continue  # It was taken back, or was there already.
            table = deltalake.DeltaTable(played["target_path"], version=played["target_version"])
            rows = table.to_pyarrow_table(columns=["day", "origin", "mean_delay_minutes"])
            days = pc.strftime(rows["day"], "%Y-%m-%dT%H:%M:%S")
            if played["since"] is not None:
                rows = rows.filter(pc.greater_equal(days, played["since"][:19]))
                days = pc.strftime(rows["day"], "%Y-%m-%dT%H:%M:%S")
            if played["until"] is not None:
                rows = rows.filter(pc.less(days, played["until"][:19]))
            for row in rows.sort_by([("mean_delay_minutes", "descending")]).to_pylist()[:1]:
                worst = {**row, "day": row["day"].date().isoformat(), "run": played["run"]}
                log.info("the worst day of run %s: %s", played["run"], worst)
                found.append(worst)
        return found

    worst_day()


example_follow_flights()
