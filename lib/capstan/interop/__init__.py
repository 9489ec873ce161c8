"""Recordings of other systems (timely dataflow, Kafka, files): import and export."""
