"""Local Airflow: its components and PostgreSQL, started, supervised and stopped together.

Airflow's own `standalone` has log servers on all interfaces, never restarts a dead component, and
leaves processes behind. This launcher starts the components on loopback only, with logins, on
PostgreSQL, and leaves nothing running when it ends.

    python -m capstan.airflow.local --port 8080

It starts processes, and imports neither Airflow nor Spark.
"""
