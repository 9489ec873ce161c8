"""Example: an Airflow DAG that runs whenever a replay has changed the table `flights_by_day`.

The event of the table's asset carries the certificate of the replay: its days, and the version of
the table that has them. So this DAG reads only what is new, at that version.
"""

from __future__ import annotations

import logging

from airflow.sdk import dag, task

from capstan import ReplayResult
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
    """Report the worst day of each replay."""

    @task(doc_md="Finds the day with the longest mean delay among the replayed ones.")
    def worst_day(triggering_asset_events: dict | None = None) -> list[dict]:  # type: ignore[type-arg]
        """The worst day of each replay that changed the table since the last run."""
        import polars

        worst_days = []
        day = polars.col("day").dt.strftime("%Y-%m-%dT%H:%M:%S")
        for event in (triggering_asset_events or {}).get(FLIGHTS_BY_DAY, []):
            replayed = ReplayResult.from_json(event.extra)
            played = replayed.certificate
            if played is None or not played.published or replayed.unchanged:
                continue  # Rolled back, or already there.
            rows = polars.scan_delta(played.target_path, version=played.target_version)
            if played.since is not None:
                rows = rows.filter(day >= str(played.since)[:19])
            if played.until is not None:
                rows = rows.filter(day < str(played.until)[:19])
            rows = rows.select("day", "origin", "mean_delay_minutes")
            first = rows.sort("mean_delay_minutes", descending=True, nulls_last=True).head(1)
            for row in first.collect().to_dicts():
                worst = {**row, "day": row["day"].date().isoformat(), "run": played.run}
                log.info("the worst day of run %s: %s", played.run, worst)
                worst_days.append(worst)
        return worst_days

    worst_day()


example_follow_flights()
