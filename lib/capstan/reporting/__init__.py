"""Read models of tapes, runs and coverage for pages, reports, listings and metrics.

`*_history`, `*_view` and `listings` read a lake into values; `plots` places lines; `html`
renders pages and reports. Nothing here starts a JVM or knows Airflow: the server
of a page decides on permissions.
"""
