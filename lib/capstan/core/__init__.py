"""The pure core: times, the protocol of events, declarations. Neither Spark nor Airflow."""
