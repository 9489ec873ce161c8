"""Audits: is a table exactly what the stream said, and if not, which rows differ."""

from __future__ import annotations

from capstan.audit.float_tolerance import Close
from capstan.audit.inputs import played_records, restrict
from capstan.audit.result import Audit, CheckResult, Finding
from capstan.audit.run import audit_computed, audit_copy
from capstan.audit.table_shape import Shape, shape_of

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
