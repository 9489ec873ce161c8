"""Capstan records the output of a streaming job, verifies it, and replays any part of it."""

from __future__ import annotations

from capstan import former_paths

former_paths.install()
