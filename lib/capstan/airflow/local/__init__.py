"""Local Airflow: its components and PostgreSQL, started, supervised and stopped together.

    python -m capstan.airflow.local --port 8080

`docs/decisions/0038-airflow-on-one-machine.md` has why this is not Airflow's `standalone`. It
starts processes, and imports neither Airflow nor Spark.
"""
