"""Lists the mistakes of `streams.yaml` as the import error of this file; it has no Airflow DAG."""

from __future__ import annotations

from capstan.airflow import check_declarations

check_declarations(__file__)
