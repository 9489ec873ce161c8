"""The pure core: times, event protocol and configuration, without Spark or Airflow."""
