"""What needs a person: runs that wait or failed, stalled streams, violations, gaps."""

from __future__ import annotations
