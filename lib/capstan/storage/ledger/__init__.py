"""Ledgers: runs, claims, coverage, findings and retirements."""
