"""Jobs that outlive who asked for them end themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.spark import owner_watch
from capstan.spark.owner_watch import VARIABLE, name_owner, watch_owner

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = """
import time
from capstan.spark import owner_watch as owner
owner._SECONDS = 0.05
owner.watch_owner()
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def job(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", APP],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_job_ends_with_any_of_its_owners(sleeper: subprocess.Popen[bytes]) -> None:
    process = job(**{VARIABLE: name_owner([os.getpid(), sleeper.pid])})
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.3)
    assert process.poll() is None
    sleeper.kill()
    # Not even waited for: what is dead and not buried counts as gone.
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()  # type: ignore[union-attr]


def test_a_job_whose_owner_is_gone_already_ends_at_once(sleeper: subprocess.Popen[bytes]) -> None:
    named = name_owner([sleeper.pid])
    sleeper.kill()
    sleeper.wait()
    process = job(**{VARIABLE: named})
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()  # type: ignore[union-attr]


def test_a_number_that_was_given_to_another_process_is_no_owner() -> None:
    process = job(**{VARIABLE: f"{os.getpid()}:7"})
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()  # type: ignore[union-attr]


def test_the_jvm_that_started_the_job_ends_with_it(sleeper: subprocess.Popen[bytes]) -> None:
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    environment = {VARIABLE: name_owner([sleeper.pid]), "PYSPARK_GATEWAY_PORT": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", start, APP],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    sleeper.kill()
    assert parent.wait(10) == -signal.SIGKILL
    assert parent.stdout.read() == ""
    parent.stdout.close()


@pytest.mark.parametrize("named", ["", "nonsense", " "])
def test_without_an_owner_nothing_is_watched(named: str) -> None:
    assert watch_owner({VARIABLE: named}) is None
    assert watch_owner({}) is None


def test_processes_are_told_apart_by_when_they_began() -> None:
    mine, parent = name_owner([os.getpid(), os.getppid()]).split()
    assert mine.startswith(f"{os.getpid()}:")
    assert owner_watch._is_running(mine)
    assert owner_watch._is_running(parent)
    assert not owner_watch._is_running(f"{os.getpid()}:0")
    assert Path("/proc/self/stat").exists() == (not mine.endswith("?"))
