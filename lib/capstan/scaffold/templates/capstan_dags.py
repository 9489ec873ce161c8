"""The Airflow DAGs of Capstan: for each stream and replay of the `streams.yaml` beside this file.

`capstan_dags` takes a prefix of DAG ids, tags, an owner, a pool and other arguments of DAGs.
"""

from __future__ import annotations

from capstan.airflow import capstan_dags

globals().update(capstan_dags(__file__))
