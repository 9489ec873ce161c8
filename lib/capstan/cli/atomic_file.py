"""Output files of commands, written atomically."""

from __future__ import annotations

from pathlib import Path

from capstan.errors import InvalidRequestError


def write_file(output: Path, text: str) -> int:
    """Write a file atomically and return its size in bytes.

    Raises:
        InvalidRequestError: `CAP-OUTPUT` when the file cannot be written.
    """
    content = text.encode("utf-8")
    unfinished = output.with_name(f".{output.name}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(output)
    except (OSError, ValueError) as error:
        unfinished.unlink(missing_ok=True)
        raise InvalidRequestError(
            "CAP-OUTPUT",
            f"cannot write {output}: {error}",
            "name a file in an existing folder",
            file=str(output),
        ) from error
    return len(content)
