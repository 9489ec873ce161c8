"""Pages in Airflow's web server: routes, permissions and security headers."""
