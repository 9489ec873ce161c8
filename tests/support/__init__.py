"""Parts for tests, imported by tests only."""
