"""Backfills: what a declared replay covers of its range, what is missing, and how it is filled."""

from __future__ import annotations
