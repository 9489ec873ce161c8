"""Capstan's Airflow DAGs, for the streams and replays of the `streams.yaml` beside this file.

`capstan_dags` also takes a prefix of DAG ids, tags, a pool and `default_args`, such as `owner`.
"""

from __future__ import annotations

from capstan.airflow import capstan_dags

globals().update(capstan_dags(__file__))
