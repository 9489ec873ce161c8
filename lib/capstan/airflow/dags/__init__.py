"""Builders of the DAGs, with their forms, timetables and notifications."""
