"""Capstan: records what a streaming job puts out, verifies it, and replays any part of it."""

from __future__ import annotations

from capstan import former_paths

former_paths.install()
