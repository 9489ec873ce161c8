"""Airflow on this machine: its components and PostgreSQL, started, watched and stopped together.

Airflow's own `standalone` listens on all interfaces with its log servers, never restarts what died
and leaves processes behind. This launcher starts the components itself: on loopback only, with
logins, over PostgreSQL, and with nothing left when it ends.

    python -m capstan.airflow.local --port 8080

It imports neither Airflow nor Spark: it starts processes.
"""
