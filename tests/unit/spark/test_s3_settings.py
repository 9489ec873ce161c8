"""The JVM finds S3 where the rest of the process does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.spark.s3_settings import names_in_defaults, s3_settings
from capstan.spark.safe_commits import CHECKPOINT_FILES, LOG_STORES

if TYPE_CHECKING:
    from pathlib import Path


# Other tools write `s3://`; Hadoop's file system has `s3a://` alone.
S3 = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, {}),
        ({"AWS_REGION": ""}, {}),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, {"endpoint.region": "eu-west-1"}),
        (
            {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "us-east-1"},
            {"endpoint.region": "us-east-1"},
        ),
        (
            {"AWS_ENDPOINT_URL": "http://minio:9000"},
            {"endpoint": "http://minio:9000", "path.style.access": "true"},
        ),
        (
            {"AWS_ENDPOINT_URL": "http://other", "AWS_ENDPOINT_URL_S3": "http://minio:9000"},
            {"endpoint": "http://minio:9000", "path.style.access": "true"},
        ),
    ],
)
def test_endpoint_and_region(environment: dict[str, str], wanted: dict[str, str]) -> None:
    assert s3_settings(environment) == {
        **LOG_STORES,
        **CHECKPOINT_FILES,
        **S3,
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in wanted.items()},
    }


def test_settings_of_the_user_s_stay() -> None:
    assert s3_settings({}, {*S3, *LOG_STORES, *CHECKPOINT_FILES}) == {}
    environment = {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://minio:9000"}
    endpoint, region = "spark.hadoop.fs.s3a.endpoint", "spark.hadoop.fs.s3a.endpoint.region"
    given = {endpoint, "spark.delta.logStore.class"}
    assert s3_settings(environment, given) == {
        **S3,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        region: "eu-west-1",
    }


def test_names_in_the_file_of_defaults(tmp_path: Path) -> None:
    assert names_in_defaults({}) == frozenset()
    assert names_in_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == frozenset()
    text = "# spark.no yes\nspark.a b\n  spark.c=d\nspark.e : f\nother g\n"
    (tmp_path / "spark-defaults.conf").write_text(text, encoding="utf-8")
    actual = names_in_defaults({"SPARK_CONF_DIR": str(tmp_path)})
    assert actual == {"spark.a", "spark.c", "spark.e"}


def test_profiles_are_found_unless_there_are_keys_or_a_choice() -> None:
    name = "spark.hadoop.fs.s3a.aws.credentials.provider"
    providers = s3_settings({"AWS_PROFILE": "shop"})[name].split(",")
    # Hadoop's own come first: keys in its settings still count.
    assert "Simple" in providers[1]
    assert providers[-1].endswith(".DefaultCredentialsProvider")
    assert name not in s3_settings({"AWS_PROFILE": "shop", "AWS_ACCESS_KEY_ID": "one"})
    assert name not in s3_settings({"AWS_PROFILE": "shop"}, [name])
