"""Capstan for Airflow: DAGs, operators, a sensor, assets. The only package that imports Airflow.

Importing this package imports neither Airflow nor Spark. Its modules import Airflow; only running
tasks import Spark or read a lake.
"""
