"""Capstan's Airflow DAGs, for the streams and replays of the `streams.yaml` beside this file."""

from __future__ import annotations

from capstan.airflow import capstan_dags

globals().update(capstan_dags(__file__))
