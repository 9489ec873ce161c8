"""Execution of a replay: attempts, locks, staging, approval, recovery and rollback."""
