"""Requests that are completed by the preset of their stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capstan.core.config import ProjectConfig
from capstan.core.config.change_rules import problem_without_sequence
from capstan.core.config.loading.change_completion import preset_settings
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request


def completed(declarations: ProjectConfig, request: Request) -> Request:
    """The request with the rule of a merge by sequence that the preset of its stream has."""
    added: dict[str, Any] = preset_settings(request, declarations.streams)
    request = replace(request, **added) if added else request
    problem = problem_without_sequence(request)
    if problem is None:
        return request
    raise InvalidRequestError(
        "CAP-SEQUENCE", problem, "give mode merge, keys and sequence_by, or none of them"
    )
