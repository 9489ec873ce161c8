"""Backfills: the coverage of a declared replay's range, its gaps, and the runs that fill them."""

from __future__ import annotations
