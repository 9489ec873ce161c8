"""Kafka topics of recordings: their layout, export, import and checks."""
