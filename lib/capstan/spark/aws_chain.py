"""What the environment of a process says of S3: where it is, and where its credentials are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""The variables that have credentials themselves."""
_ELSEWHERE = (
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)


def needs_chain(environment: Mapping[str, str]) -> bool:
    """Whether a process has no keys in its variables, but a profile, or a role of Amazon's."""
    if environment.get(KEYS[0]):
        return False
    if any(environment.get(name) for name in _ELSEWHERE):
        return True
    home = environment.get("HOME")
    names = ("credentials", "config")
    return bool(home) and any(Path(str(home), ".aws", name).is_file() for name in names)


def endpoint_and_region(environment: Mapping[str, str]) -> tuple[str, str]:
    """Endpoint and region of S3 as the `AWS_*` variables name them; empty where they do not."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
    return endpoint, region
