"""Pipelines on Spark: stages as tasks, and how rows and state travel."""
