"""Commands in hints: a shell reads from each the words that were given."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from capstan.errors.shell_command import command, shell_line


def test_values_are_quoted_only_where_they_must_be() -> None:
    assert command("unlock", "march-1") == "`capstan unlock march-1`"
    assert command("audit", "o", "--against", "/a b/*") == "`capstan audit o --against '/a b/*'`"
    assert command("capture", "o", "--rescale", 3) == "`capstan capture o --rescale 3`"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_a_shell_reads_the_same_words(words: list[str]) -> None:
    assert shlex.split(shell_line(*words)) == words
