"""Spark apps: a JSON request, one call, a result file, an exit code."""

from __future__ import annotations

from capstan.jobs.handlers import (
    audit,
    backfill,
    capture,
    maintain,
    plan,
    publish,
    replay,
    rollback,
    verify,
)
from capstan.jobs.job_types import Handler, JobResult, JsonObject, Place, Work
from capstan.jobs.main import main

__all__ = [
    "Handler",
    "JobResult",
    "JsonObject",
    "Place",
    "Work",
    "audit",
    "backfill",
    "capture",
    "main",
    "maintain",
    "plan",
    "publish",
    "replay",
    "rollback",
    "verify",
]
