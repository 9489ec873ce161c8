"""The way to S3 for Arrow and delta-rs, which read and write there without a JVM.

Both read the `AWS_*` variables of this process. A source may be set that has other values, such as
an Airflow connection; these never become variables of this process, and are not stored anywhere.
`child_variables` hands them to a process that is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from capstan.spark.aws_chain import KEYS, endpoint_and_region, needs_chain

if TYPE_CHECKING:
    from pyarrow import fs

Variables = Mapping[str, str]
"""Values by the name of the variable that Amazon's tools read, such as `AWS_ACCESS_KEY_ID`."""

_SCHEMES = ("s3://", "s3a://")
# A store that fails is asked again for about a minute: by Arrow so many times, with growing pauses,
# and by delta-rs with pauses of at most five seconds. Hadoop's own settings are similar.
_ATTEMPTS = 8
_RETRIES = {"max_retries": "500", "retry_timeout": "60s", "backoff_config.max_backoff": "5s"}
_source: Callable[[], Variables] | None = None


def take_from(source: Callable[[], Variables] | None) -> None:
    """Set the source of other values than those of the environment, called when S3 is used."""
    global _source  # noqa: PLW0603
    _source = source


def variables() -> Variables:
    """The values that take precedence over the environment; empty without a source."""
    return _source() if _source is not None else {}


def storage_options(path: str) -> dict[str, str] | None:
    """The options of delta-rs for a table; None where its own defaults do."""
    if not path.startswith(_SCHEMES):
        return None
    given = variables()
    if not given and needs_chain(os.environ):
        # delta-rs has Amazon's own chain, but uses it only for Amazon's own endpoint.
        given = {"AWS_FORCE_CREDENTIAL_LOAD": "true"}
    return {**_RETRIES, **given}


def bucket(name: str) -> fs.FileSystem:
    """Arrow's file system of a bucket, with its region looked up once."""
    return _bucket(name, tuple(sorted({**_place(), **variables()}.items())))


def child_variables() -> dict[str, str | None]:
    """The `variables` for a program to be started, with None to hide one."""
    # Keys of another source would not fit to these, nor a token.
    given = variables()
    hidden = (*KEYS, "AWS_PROFILE") if KEYS[0] in given else ()
    return {**dict.fromkeys(hidden), **given}


@lru_cache(maxsize=32)
def _bucket(name: str, found: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    from pyarrow import fs

    values = dict(found)
    endpoint = values.get("AWS_ENDPOINT_URL") or ""
    scheme, _, host = endpoint.rpartition("://")
    region = values.get("AWS_REGION")
    if not region and not host:
        region = fs.resolve_s3_region(name)
    options = {
        "access_key": values.get("AWS_ACCESS_KEY_ID"),
        "secret_key": values.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": values.get("AWS_SESSION_TOKEN"),
        "region": region,
        "endpoint_override": host.rstrip("/"),
    }
    return fs.S3FileSystem(
        **{key: value for key, value in options.items() if value},
        scheme=scheme or "https",
        # A small file is one request instead of three.
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def _place() -> Variables:
    """Where S3 is, by the variables of this process; Arrow finds its credentials itself."""
    endpoint, region = endpoint_and_region(os.environ)
    return {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": region}
