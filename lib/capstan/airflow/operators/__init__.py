"""Operators and the sensor, and what they tell Airflow."""
