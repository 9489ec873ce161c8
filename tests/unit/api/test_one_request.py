"""Every way to request a replay has every field of the request, or says why it has not.

For the form, see `tests/dags/test_resolving.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import get_args, get_type_hints

import pytest
import typer

from capstan.api.replay_options import ReplayOptions
from capstan.backfill.planner import BackfillRequest
from capstan.cli.app import app
from capstan.cli.options import NO_OPTIONS
from capstan.core.config import Replay
from capstan.core.config.help import Field, fields_of
from capstan.core.config.loading.validation import read_request
from capstan.replay.planning.request import Request
from tests.support.declaration_schema import declaration_schema

FIELDS = {field.name: field for field in fields_of(Request)}
# What a declared replay does not fix: the times of a run, its cut, and how it is carried out.
OF_A_RUN = {
    "replay", "known_at", "as_of", "cuts", "lookups", "peers", "partial", "adopt", "hold"
}  # fmt: skip


def test_each_field_has_a_text() -> None:
    assert list(FIELDS) == [field.name for field in dataclasses.fields(Request)]
    for field in FIELDS.values():
        for text in (field.cli, field.form, field.python):
            assert text.endswith(".") and not text.endswith("..")
        assert field.python in (Request.__doc__ or "")


def test_the_former_field_of_requests_is_taken_and_dropped() -> None:
    request = Request("a", "b")
    stored = {**request.to_json(), "direct": True}
    assert Request.from_json(stored) == request
    assert read_request(Request, {"stream": "a", "into": "b", "direct": True}) == request
    assert request.to_json()["direct"] is False
    backfill = read_request(BackfillRequest, {"replay": "a", "direct": True})
    assert backfill == BackfillRequest("a")


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_each_field_is_an_option(command: str) -> None:
    options = {param.name: param for param in typer.main.get_command(app).commands[command].params}  # type: ignore[attr-defined]
    assert set(FIELDS) - NO_OPTIONS <= set(options)
    assert not NO_OPTIONS & set(options)
    for name in set(FIELDS) - NO_OPTIONS:
        assert options[name].help == FIELDS[name].cli


def test_each_field_is_a_keyword_of_python() -> None:
    options = get_type_hints(ReplayOptions)
    # The method's own arguments name the stream and the target.
    assert set(options) == set(FIELDS) - {"stream", "into"}
    for name, taken in options.items():
        assert _takes(FIELDS[name], taken), name


def _takes(field: Field, taken: object) -> bool:
    """Whether a keyword of this type takes the field's own values."""
    kinds = [getattr(kind, "__origin__", kind) for kind in get_args(taken)]
    return any(inspect.isclass(kind) and issubclass(field.kind, kind) for kind in kinds)


def test_each_field_of_what_is_played_can_be_declared() -> None:
    declared = declaration_schema()["$defs"]["Replay"]["properties"]
    names = {"target" if name == "into" else name for name in FIELDS}
    assert names - OF_A_RUN <= set(declared)
    assert not OF_A_RUN & set(declared)
    replay = Replay(name="r", stream="s", target="t")
    fixed = {name for name in names - OF_A_RUN if name not in ("since", "until", "target")}
    assert set(replay.request_fields) == fixed - {"follow", "approve"} | {"into"}
