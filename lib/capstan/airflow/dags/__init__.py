"""The DAGs that DAG files make, their forms, schedules and notifications."""
