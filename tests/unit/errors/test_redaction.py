"""What is concealed: in errors, log lines, tracebacks, and in other spellings of a value."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pytest

from capstan.errors import InvalidRequestError, redaction, translation
from capstan.telemetry.structured_logging import Log, LogFormat

MARK = 'm4rk "of\\a\nsecret'


@pytest.fixture(autouse=True)
def _concealed() -> Iterator[None]:
    redaction.conceal(MARK)
    yield
    redaction._hidden.clear()


@pytest.mark.parametrize("spelling", [MARK, repr(MARK), json.dumps(MARK), 'm4rk "of\\a'])
def test_a_value_is_masked_in_each_spelling(spelling: str) -> None:
    shown = redaction.masked(f"option is {spelling}, not x")
    assert "m4rk" not in shown
    assert shown.startswith("option is ")
    assert shown.endswith(", not x")


def test_short_values_are_not_masked() -> None:
    redaction.conceal("1")
    redaction.conceal("")
    assert redaction.masked("101") == "101"


def test_errors_show_no_value_in_text_fields_or_pickles() -> None:
    error = InvalidRequestError("CAP-X", f"got {MARK}", f"not {MARK}", a=[{"b": MARK}], c=1)
    assert error.to_json() == {
        "error": "CAP-X",
        "message": "got ***",
        "hint": "not ***",
        "a": [{"b": "***"}],
        "c": 1,
    }
    assert "m4rk" not in f"{error!r} {pickle.loads(pickle.dumps(error)).to_json()}"


def test_a_foreign_error_is_masked_before_it_is_cut() -> None:
    text = "x" * 290 + MARK.splitlines()[0] + "y" * 50
    assert "m4rk" not in str(translation.to_capstan_error(RuntimeError(text)))


def test_log_lines_show_no_value() -> None:
    for form in LogFormat:
        lines: list[str] = []
        Log(form, lines.append).point("a.point", {"option": MARK, "stream": "s"})
        assert len(lines) == 1
        assert "m4rk" not in lines[0]
        assert "***" in lines[0]


def test_a_traceback_shows_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise RuntimeError(MARK)
        except RuntimeError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        assert redaction.reveals(error)
        assert not redaction.reveals(ValueError("outer"))
        redaction.print_exception(error)
    err = capsys.readouterr().err
    assert "m4rk" not in err
    assert "ValueError: outer" in err
