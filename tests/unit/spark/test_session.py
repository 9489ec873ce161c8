"""Nothing is written where concurrent commits would overwrite each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.replay.run import publish, replay, rollback
from capstan.spark.guest_session import open_session
from capstan.spark.session import build_session
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import Books, intent_json, lay_tape
from tests.support.sample_streams import NAME, declared, little_stream

if TYPE_CHECKING:
    from pathlib import Path

FAR = "s3a://bucket/march"


class WithoutLogStore(SparkSession):
    """A session of Spark's that has no settings for S3."""

    sparkContext = SimpleNamespace(getConf=dict)
    _jsparkSession = SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=dict))

    def __init__(self) -> None:
        """No JVM."""


def test_a_target_there_is_refused_wherever_the_lake_is(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, NAME, ["a"], [(0,)], (1,))
    books, request = Books(lake, NAME, FAR), Request(NAME, FAR)
    books.published("far-00000000-1", [0], Region(Box((None,), (None,))))
    books.stepped("far-00000000-1", "intent", intent_json(request, [(1,)]))
    declarations, spark = declared(little_stream(tmp_path)), WithoutLogStore()
    for work in (
        lambda: replay(spark, lake, declarations, request),  # type: ignore[arg-type]
        lambda: publish(spark, lake, declarations, "far-00000000-1"),  # type: ignore[arg-type]
        lambda: rollback(spark, lake, declarations, "far-00000000-1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            InvalidRequestError, match="CAP-LAKE: concurrent commits to .*march would overwrite"
        ) as refused:
            work()
        assert refused.value.fields == {"lake": FAR}


def test_sessions_of_spark_connect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class SparkSession:
        """As pyspark's own, which has no context."""

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"{name} is not supported in Spark Connect")

    SparkSession.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(
        InvalidRequestError, match="^CAP-CONNECT: pyspark.sql.connect.session.Spark"
    ):
        open_session(SparkSession(), "/lake")  # type: ignore[arg-type]
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "connect")
            with pytest.raises(InvalidRequestError, match=f"^CAP-CONNECT: {name} makes"):
                build_session()
            with pytest.raises(InvalidRequestError, match="^CAP-CONNECT: "):
                open_session(None, "/lake")
