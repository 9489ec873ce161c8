"""The command line: `capstan`, a thin layer over what the other rooms do."""

from __future__ import annotations

from capstan.cli.app import main

__all__ = ["main"]
