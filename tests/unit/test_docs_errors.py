"""The error catalogue is that of the code, and says of each error when it is raised."""

from __future__ import annotations

import re

from tests.support import error_catalogue
from tests.support.docs import PAGES, ROOT, page


def test_the_page_is_made_from_the_code() -> None:
    text = page("errors")
    made = error_catalogue.page(error_catalogue.catalogue(), error_catalogue.written(text))
    assert made == text, "run `make errors`"


def test_every_code_is_listed_and_says_when_it_is_raised() -> None:
    """The codes are searched for as text, so that none escapes the catalogue."""
    sources = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "lib" / "capstan").rglob("*.py")
        if path.parent.name not in ("testing", "bench")
    ]
    coded = set(re.findall(r'"(CAP-[A-Z0-9-]+)[":]', "\n".join(sources)))
    # Of these two nothing is raised: others are made from them.
    coded -= {"CAP-DAG"} | ({"CAP-STATE"} - error_catalogue.catalogue().keys())
    assert set(error_catalogue.written(page("errors"))) == coded


def test_exit_codes_are_told_but_of_what_no_command_ends_with() -> None:
    without = {code for code, entry in error_catalogue.catalogue().items() if not entry.exit_codes}
    assert without == {"CAP-CHANGED", "CAP-EXTRA", "CAP-MISSING", "CAP-RESULT", "CAP-SUBMIT"}


def test_codes_that_pages_name_are_listed() -> None:
    listed = set(error_catalogue.written(page("errors")))
    for name, text in PAGES.items():
        named = set(re.findall(r"\bCAP-[A-Z0-9]+(?:-[A-Z0-9]+)*", text))
        assert named <= listed, name
