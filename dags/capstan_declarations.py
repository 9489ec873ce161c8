"""No DAG of Airflow's: what is wrong in streams.yaml, as an import error of this file.

A mistake leaves out the DAGs of the declaration that it is in; all others stay. Airflow reads this
file since it has the words DAG and Airflow in it.
"""

from __future__ import annotations

from capstan.airflow.dags.declaration_errors import require_none
from capstan.airflow.settings import read_setting

require_none(read_setting(__file__))
