"""Pipelines on Spark: stages as tasks, and the transport of rows and state."""
