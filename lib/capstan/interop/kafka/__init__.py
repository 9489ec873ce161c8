"""Recordings in Kafka topics: layout, export, import and checks."""
