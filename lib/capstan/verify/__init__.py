"""The Spark verifier: is what a tape says a sound recording, and are its records all there."""

from __future__ import annotations

from capstan.verify.result import Verification, WorkerVerdict
from capstan.verify.run import verify

__all__ = ["Verification", "WorkerVerdict", "verify"]
