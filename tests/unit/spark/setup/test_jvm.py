"""How a driver's JVM is started, without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from capstan.errors import InvalidRequestError
from capstan.spark.setup import jvm


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPSTAN_LOG_LEVEL", raising=False)
    monkeypatch.delenv("CAPSTAN_DRIVER_MEMORY", raising=False)


def test_options_are_quiet_bounded_and_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    words = jvm.driver_options("-Da=1", "", "-Db=2").split(" ")
    assert words[-2:] == ["-Da=1", "-Db=2"]
    assert "-Dcapstan.log.level=ERROR" in words
    assert "-XX:ReservedCodeCacheSize=512m" in words
    assert sum(word.startswith("-XX:Tier4") for word in words) == 3
    [named] = [word for word in words if word.startswith("-Dlog4j2.configurationFile=file://")]
    assert Path(named.partition("file://")[2]).is_file()
    assert "-Dcapstan.log.level=WARN" in jvm.driver_options(level="WARN")
    monkeypatch.setenv("CAPSTAN_LOG_LEVEL", "debug")
    assert "-Dcapstan.log.level=DEBUG" in jvm.driver_options(level="WARN")


@pytest.mark.parametrize(
    ("name", "value"), [("CAPSTAN_LOG_LEVEL", "LOUD"), ("CAPSTAN_DRIVER_MEMORY", "much")]
)
def test_a_wrong_variable_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequestError, match=f"CAP-SETTING: {name} is '{value}'"):
        print(jvm.driver_options(), jvm.driver_memory())


def test_memory_is_half_of_the_machine_s_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for pages, memory in ((1, "1024m"), (6 << 18, "3072m"), (1 << 30, "4096m")):
        actual = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}
        monkeypatch.setattr(os, "sysconf", actual.__getitem__)
        assert jvm.driver_memory() == memory
    monkeypatch.setenv("CAPSTAN_DRIVER_MEMORY", "800m")
    assert jvm.driver_memory() == "800m"


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", "2"), ("local[1]", "2"), ("local[3]", "6"), ("local[4,2]", "8")],
)
def test_a_local_driver_listens_on_loopback_only(master: str, partitions: str) -> None:
    assert jvm.is_local(master)
    assert jvm.local_settings(master) == {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": partitions,
    }


@pytest.mark.parametrize("master", ["yarn", "spark://local:7077", "local-cluster[2,1,1024]", ""])
def test_a_cluster_is_not_local(master: str) -> None:
    assert not jvm.is_local(master)
