"""Requests to S3 of a micro-batch and of a run, counted by a proxy before a real server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from capstan.capture.run import capture
from capstan.errors import RangeLockedError
from capstan.errors.translation import to_capstan_error
from capstan.replay.planning.request import Request
from capstan.replay.run import replay, unlock
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import claims
from capstan.telemetry import instrumentation
from tests.support import lake_contents
from tests.support.s3_faults import FaultyProcess
from tests.support.s3_requests import CountedLake, counted_s3
from tests.support.s3_server import BUCKET, Objects
from tests.support.sample_streams import NAME, declared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

ALL = Request(NAME, "copied")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProcess]:
    with counted_s3(tmp_path_factory.mktemp("objects")) as actual:
        yield actual


@pytest.fixture
def told(proxy: FaultyProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bucket, which this process and its session know the way to."""
    for name, value in Objects(proxy.endpoint).variables.items():
        monkeypatch.setenv(name, value)
    return f"s3a://{BUCKET}"


@pytest.fixture
def reached(spark: SparkSession, proxy: FaultyProcess) -> SparkSession:
    session = spark.newSession()
    for key, value in Objects(proxy.endpoint).settings.items():
        session.conf.set(key, value)
    return session


@pytest.fixture
def work(
    reached: SparkSession, proxy: FaultyProcess, told: str, tmp_path: Path
) -> Iterator[CountedLake]:
    yield CountedLake(reached, proxy, Lake.at(f"{told}/{uuid4().hex}"), tmp_path / "source")
    proxy.recover()


def test_requests_of_batches_and_runs_are_bounded(work: CountedLake) -> None:
    batches = [work.micro_batch() for _ in range(3)]
    runs = [work.run(hour) for hour in range(2)]
    # The first of each creates tables.
    assert sum(batches[2].values()) <= 125, batches
    assert sum(runs[1].values()) <= 182, runs
    # Growth is that of the commits since the last checkpoint, which are read one by one.
    assert batches[2]["LIST"] <= batches[1]["LIST"]
    assert batches[2]["PUT"] == batches[1]["PUT"]


@pytest.mark.timeout(900)
def test_requests_at_the_end_of_a_checkpoint_period_are_bounded(work: CountedLake) -> None:
    costs = [sum(work.micro_batch().values()) for _ in range(12)]
    # Each commit since the last checkpoint of a table is read by itself, and then written together.
    assert max(costs[1:]) <= 190, costs
    assert costs[11] <= 130, costs


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_requests_of_a_micro_batch_do_not_grow(work: CountedLake) -> None:
    # A checkpoint is due after ten commits, and before each the most entries are read.
    costs = [sum(work.micro_batch().values()) for _ in range(44)]
    early, late = max(costs[12:24]), max(costs[32:44])
    assert late <= 1.05 * early, costs


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_store_that_fails_now_and_then_changes_nothing(
    work: CountedLake, spark: SparkSession, tmp_path: Path
) -> None:
    work.proxy.fail_every(9, ["slow down", "internal error", "reset"])
    for _ in range(3):
        work.micro_batch()
    certificate = replay(work.session, work.lake, declared(work.stream), ALL).certificate
    work.proxy.recover()
    near = Lake.at(tmp_path / "near")
    capture(spark, near, work.stream)
    expected = replay(spark, near, declared(work.stream), ALL).certificate
    assert certificate is not None is not expected
    assert certificate.fingerprint == expected.fingerprint
    assert lake_contents.tape(work.lake)["events"] == lake_contents.tape(near)["events"]
    assert lake_contents.rows(work.lake.table("copied")) == lake_contents.rows(near.table("copied"))
    lake_contents.require_sound(work.session, work.lake, NAME)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", ["replay.staging", "replay.publish"])
def test_a_store_that_is_gone_is_named_and_the_run_goes_on_later(
    work: CountedLake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    for _ in range(3):
        work.micro_batch()

    def listen(reached: str, _facts: dict[str, object]) -> None:
        if reached == point:
            work.proxy.fail_every(1, ["reset"])

    with instrumentation.subscribe(listen), pytest.raises(Exception) as failed:
        replay(work.session, work.lake, declared(work.stream), ALL)
    assert to_capstan_error(failed.value).code == "CAP-LAKE", failed.value
    work.proxy.recover()
    table = work.lake.table("copied")
    seen = lake_contents.rows(table) if is_table(table) else []
    for claim in claims.active(work.lake):
        unlock(work.lake, claim.run)
    done = replay(work.session, work.lake, declared(work.stream), ALL).certificate
    assert done is not None
    assert done.published
    # Nobody has seen a part of it, and nothing is there twice.
    whole = lake_contents.rows(table)
    assert seen == (whole if point == "replay.publish" else [])
    assert len(whole) == len(set(whole)) > 0
    lake_contents.require_sound(work.session, work.lake, NAME)


def test_of_two_runs_that_overlap_one_lands(work: CountedLake) -> None:
    for _ in range(2):
        work.micro_batch()
    codes: list[int] = []

    def listen(reached: str, _facts: dict[str, object]) -> None:
        if reached == "replay.staging" and not codes:
            codes.append(0)
            with pytest.raises(RangeLockedError) as refused:
                replay(work.session, work.lake, declared(work.stream), replace(ALL, workers=("a",)))
            codes.append(refused.value.exit_code)

    with instrumentation.subscribe(listen):
        done = replay(work.session, work.lake, declared(work.stream), ALL).certificate
    assert done is not None
    assert done.published
    assert codes == [0, 4]
    assert lake_contents.rows(work.lake.table("copied"))
