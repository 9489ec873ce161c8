"""The type of JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
"""A JSON object, as stored or printed."""
