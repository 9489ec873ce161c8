"""Pipelines: graphs of operators, like those of a streaming job, that replay a tape.

This package exports everything that a pipeline is built with, except the operators: see
`capstan.pipeline.operators`.
"""

from __future__ import annotations

from typing import Any

from capstan.core.public_names import names_of, public_name


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *names_of(__name__)})
