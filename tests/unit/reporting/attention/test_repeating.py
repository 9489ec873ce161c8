"""The command that repeats a run says all of its request, or there is none."""

from __future__ import annotations

import json
import shlex

import pytest

from capstan.cli import app as commands
from capstan.core.config import Mode
from capstan.replay.planning.request import Request
from capstan.reporting.attention.repeating import replay_command


def stored(request):
    """The request as a ledger has it."""
    return json.loads(json.dumps(request.to_json()))


PLAIN = {"workers": ("EWR", "a,b"), "since": "2013-03-01", "as_of": 0}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        PLAIN,
        {
            "transform": "x",
            "mode": Mode.MERGE,
            "keys": ("k",),
            "sequence_by": ("version as number",),
        },
        {"partial": True, "hold": True, "peers": 3, "until": "2013-04-01"},
    ],
    ids=str,
)
def test_the_command_makes_the_request_again(fields, monkeypatch):
    request = Request("flights", "march", **fields)
    [program, *words] = shlex.split(replay_command(stored(request)))
    assert program == "capstan"
    seen = []

    class Work:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def replay(self, request):
            seen.append(request)
            raise KeyboardInterrupt

    monkeypatch.setattr("capstan.cli.context.Shell.working", lambda *_: Work())
    commands.main(words)
    assert seen == [request]


@pytest.mark.parametrize(
    "fields",
    [{"approve": True}, {"replay": "by_day"}, {"pipeline": "p", "lookups": {"names": 3}}],
    ids=str,
)
def test_a_request_that_no_command_says_has_none(fields):
    assert replay_command(stored(Request("flights", "march", **fields))) == ""
    assert replay_command({}) == ""
