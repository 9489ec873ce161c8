"""What pages and reports show: tapes, runs and coverage, read without a JVM and rendered to HTML.

`scanning`, `progress`, `streams`, `runs` and `coverage` read a lake into frozen values; `plots` and
`calendars` draw them as SVG; `rendering` and `report` make HTML of them. Nothing here starts Spark
or knows Airflow: who may see what is decided by whoever serves a page.
"""
