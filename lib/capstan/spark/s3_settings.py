"""Settings of Hadoop's S3 connector from the variables that everything else on S3 reads.

Ledgers and listings are read without a JVM, by Arrow and delta-rs. Both take the endpoint, the
region and the credentials from `AWS_*` variables, or find them as Amazon's tools do. The connector
reads keys from these variables, but neither the endpoint nor the region, and no profiles.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from capstan.spark.aws_chain import endpoint_and_region, needs_chain
from capstan.spark.safe_commits import CHECKPOINT_FILES, LOG_STORES

_PREFIX = "spark.hadoop.fs.s3a."
_STORES = "spark.delta.logStore."
# Hadoop's own sources, then Amazon's chain, which has profiles and the tokens of roles as well.
_PROVIDERS = ",".join(
    [
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    ]
)
_NAME = re.compile(r"^\s*(spark\.[^\s=:]+)")


def s3_settings(environment: Mapping[str, str], given: Collection[str] = ()) -> dict[str, str]:
    """Settings of a Spark session for S3: the classes of our jar, and what variables name.

    Without keys, but with a profile or the token of a role, Amazon's chain of credentials is added
    to Hadoop's. What is `given` by the user stays as it is.
    """
    endpoint, region = endpoint_and_region(environment)
    # Delta takes a store for one scheme or for all, not both.
    own = any(name.startswith(_STORES) for name in given)
    settings = {} if own else {**LOG_STORES, **CHECKPOINT_FILES}
    # Other tools write `s3://`, for which Hadoop has no file system.
    settings["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if endpoint:
        # Like Arrow and delta-rs: other servers rarely have a host name for each bucket.
        settings |= {f"{_PREFIX}endpoint": endpoint, f"{_PREFIX}path.style.access": "true"}
    if region:
        settings[f"{_PREFIX}endpoint.region"] = region
    if needs_chain(environment):
        settings[f"{_PREFIX}aws.credentials.provider"] = _PROVIDERS
    return {name: value for name, value in settings.items() if name not in given}


def names_in_defaults(environment: Mapping[str, str]) -> frozenset[str]:
    """Names of settings in `spark-defaults.conf`, which a session cannot tell from its others."""
    folder = environment.get("SPARK_CONF_DIR")
    path = Path(folder or "", "spark-defaults.conf")
    if not folder or not path.is_file():
        return frozenset()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return frozenset(match[1] for match in map(_NAME.match, lines) if match)
