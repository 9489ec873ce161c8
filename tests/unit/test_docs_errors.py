"""The error catalogue is that of the code, and says of each error when it is raised."""

from __future__ import annotations

import re

import error_catalogue
from tests.support.docs import PAGES, ROOT


def test_the_page_has_the_messages_and_hints_of_the_code() -> None:
    assert """
## CAP-RUN

Exit code 2. There is no run of that name.

| message | what to do |
| --- | --- |
| run {run} has no published rows{did_you_mean} | see `capstan runs` |
| there is no run {name} | see `capstan runs` |
| there is no run {run} | see `capstan runs` |

""" in error_catalogue.page()


def test_every_code_is_listed_and_says_when_it_is_raised() -> None:
    """The codes are searched for as text, so that none escapes the catalogue."""
    sources = [
        path.read_text(encoding="utf-8") for path in (ROOT / "lib" / "capstan").rglob("*.py")
    ]
    coded = set(re.findall(r'"(CAP-[A-Z0-9-]+)[":]', "\n".join(sources)))
    # It is the code of a base class, which is never raised itself.
    coded -= {"CAP-DAG"}
    assert error_catalogue.sentences().keys() == error_catalogue.catalogue().keys() == coded


def test_exit_codes_are_told_but_of_what_no_command_ends_with() -> None:
    without = {code for code, entry in error_catalogue.catalogue().items() if not entry.exit_codes}
    assert without == {"CAP-CHANGED", "CAP-EXTRA", "CAP-MISSING", "CAP-SUBMIT"}


def test_codes_that_pages_name_are_listed() -> None:
    listed = error_catalogue.sentences().keys()
    for name, text in PAGES.items():
        present = re.sub(r"`CAP-[A-Z-]+` is gone", "", text)
        named = set(re.findall(r"\bCAP-[A-Z0-9]+(?:-[A-Z0-9]+)*", present))
        assert named <= listed, name
