"""What Airflow's list of providers shows of Capstan."""

from __future__ import annotations


def provider_info() -> dict[str, object]:
    """The entry point `apache_airflow_provider`: name and description, as Airflow reads them."""
    return {
        "package-name": "capstan-replay",
        "name": "Capstan",
        "description": "Captures streams in Delta tables, verifies and replays them.",
    }
