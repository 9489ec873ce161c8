"""The verifier: checks that a tape is a valid recording and that its records are complete."""

from __future__ import annotations

from capstan.verify.result import Verification, WorkerVerdict
from capstan.verify.run import verify

__all__ = ["Verification", "WorkerVerdict", "verify"]
