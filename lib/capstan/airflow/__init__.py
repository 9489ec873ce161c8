"""Capstan under Airflow: DAGs, operators, a sensor, assets. The only room that imports Airflow.

Importing this package imports neither Airflow nor Spark. Its modules import Airflow; nothing but a
running task imports Spark or reads a lake.
"""
