"""Audits: is a table exactly what the stream said, and if not, which rows differ."""

from __future__ import annotations

from capstan.audit.audit import audit_computed, audit_copy
from capstan.audit.close import Close
from capstan.audit.report import Audit, CheckResult, Finding
from capstan.audit.shape import Shape, shape_of
from capstan.audit.source import played_records, restrict

__all__ = [
    "Audit",
    "CheckResult",
    "Close",
    "Finding",
    "Shape",
    "audit_computed",
    "audit_copy",
    "played_records",
    "restrict",
    "shape_of",
]
