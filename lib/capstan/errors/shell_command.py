"""Commands as texts to copy: quoted for a shell wherever a value needs it."""

from __future__ import annotations

import shlex


def command(*words: object) -> str:
    """The command `capstan` with these arguments, as Markdown code for a hint."""
    return f"`{shell_line('capstan', *words)}`"


def shell_line(*words: object) -> str:
    """Words as one line for a shell."""
    return shlex.join(map(str, words))
