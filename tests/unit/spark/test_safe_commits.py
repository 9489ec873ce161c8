"""Which settings let one of two concurrent commits to S3 succeed."""

from __future__ import annotations

import pytest

from capstan.errors import InvalidRequestError
from capstan.spark.safe_commits import (
    LOG_STORE,
    LOG_STORES,
    require_safe_commits,
    require_safe_settings,
)

PLACE = "s3a://bucket/lake"
STORE = "spark.delta.logStore.s3a.impl"


def judged(spark: dict[str, str], hadoop: dict[str, str] | None = None) -> None:
    require_safe_settings(PLACE, spark.get, (hadoop or {}).get)


def test_a_folder_asks_nothing_of_the_session() -> None:
    require_safe_commits(None, "/data/lake")  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_session_of_capstan_s_is_safe(scheme: str) -> None:
    require_safe_settings(f"{scheme}://bucket/lake", LOG_STORES.get, {}.get)


@pytest.mark.parametrize(
    "spark",
    [
        {STORE: "io.delta.storage.S3LogStore"},
        {STORE: "com.example.Store"},
        {"spark.delta.logStore.class": "com.example.Store"},
    ],
)
def test_a_store_of_somebody_else_s_is_taken(spark: dict[str, str]) -> None:
    judged(spark)


def test_a_session_without_a_log_store_is_told_which_to_set() -> None:
    with pytest.raises(InvalidRequestError, match="CAP-LAKE: .*no log store for S3") as refused:
        judged({"spark.delta.logStore.s3.impl": LOG_STORE})
    assert f"{STORE}={LOG_STORE}" in refused.value.hint
    assert refused.value.fields == {"lake": PLACE}


@pytest.mark.parametrize(
    "store",
    [
        "io.delta.storage.S3SingleDriverLogStore",
        "io.delta.storage.S3DynamoDBLogStore",
        "io.delta.storage.GCSLogStore",
        "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore",
    ],
)
@pytest.mark.parametrize("key", [STORE, "spark.delta.logStore.class"])
def test_a_store_of_delta_s_without_conditional_puts_is_refused(key: str, store: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"each other: {store} does not prevent"):
        judged({key: store})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fs.s3a.create.conditional.enabled", "false"),
        ("fs.s3a.create.performance", "TRUE"),
        ("fs.s3a.performance.flags", "mkdir, create"),
        ("fs.s3a.performance.flags", "*"),
    ],
)
def test_a_setting_that_defeats_the_condition_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        judged(LOG_STORES, {name: value})
    assert refused.value.message.startswith(f"{name}={value} lets concurrent commits")


def test_other_settings_of_s3a_are_of_no_matter() -> None:
    harmless = {
        "fs.s3a.create.conditional.enabled": "true",
        "fs.s3a.create.performance": "false",
        "fs.s3a.performance.flags": "delete,mkdir",
    }
    judged(LOG_STORES, harmless)
