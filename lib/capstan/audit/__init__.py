"""Audits: check that a table matches the stream exactly, and report the rows that differ."""

from __future__ import annotations

from capstan.audit.float_tolerance import FloatTolerance
from capstan.audit.result import Audit, CheckResult, Finding
from capstan.audit.row_view import in_another_order, played_records
from capstan.audit.run import AuditScope, Computed, audit_computed, audit_copy
from capstan.audit.table_shape import Shape, shape_of

__all__ = [
    "Audit",
    "AuditScope",
    "CheckResult",
    "Computed",
    "Finding",
    "FloatTolerance",
    "Shape",
    "audit_computed",
    "audit_copy",
    "in_another_order",
    "played_records",
    "shape_of",
]
