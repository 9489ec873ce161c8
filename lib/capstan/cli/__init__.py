"""The `capstan` command line: a thin layer over the library."""

from __future__ import annotations

from capstan.cli.app import main

__all__ = ["main"]
