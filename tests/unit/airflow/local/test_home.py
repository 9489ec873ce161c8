"""The folder that Airflow lives in: one launcher at a time, secrets made once, what is left."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from capstan.airflow.local import processes
from capstan.airflow.local.home import USER, Home, tail, write_private
from capstan.airflow.local.launcher import Launcher, LaunchOptions
from capstan.airflow.local.processes import Process
from capstan.airflow.local.settings import Setup
from capstan.errors import RangeLockedError, SystemFailureError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home that nobody holds."""
    made = Home(tmp_path.resolve() / "home")
    with made.held():
        pass
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_made_once_and_for_their_owner_alone(home: Home) -> None:
    first, password = home.secrets(), home.password()
    assert (home.secrets(), home.password()) == (first, password)
    assert len({*dataclasses.astuple(first), password}) == 5
    assert mode(home.folder / "secrets.json") == 0o600
    assert mode(home.passwords) == 0o600
    assert json.loads(home.passwords.read_text(encoding="utf-8")) == {USER: password}


def test_two_homes_share_no_secret(tmp_path: Path, home: Home) -> None:
    other = Home(tmp_path / "other")
    with other.held():
        pass
    mine, theirs = dataclasses.astuple(home.secrets()), dataclasses.astuple(other.secrets())
    assert not {*mine, home.password()} & {*theirs, other.password()}


def test_a_password_that_someone_chose_stays_and_is_hidden_again(home: Home) -> None:
    home.passwords.write_text('{"admin": "chosen", "ann": "hers"}', encoding="utf-8")
    home.passwords.chmod(0o644)
    assert home.password() == "chosen"
    assert mode(home.passwords) == 0o600


def test_secrets_cut_short_are_made_again(home: Home) -> None:
    home.secrets()
    (home.folder / "secrets.json").write_text('{"fernet_key": ', encoding="utf-8")
    assert home.secrets() == home.secrets()


def test_a_home_has_one_holder_who_is_named(home: Home) -> None:
    with home.held():
        other = subprocess.run(
            [sys.executable, "-m", "capstan.airflow.local", "--home", str(home.folder)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert other.returncode == RangeLockedError.exit_code
    assert (
        f"CAP-LAUNCHER: another launcher is running in {home.folder}: process {os.getpid()}\n"
        in (other.stderr)
    )
    with home.held():
        pass


def test_a_home_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(SystemFailureError, match="CAP-HOME"),
        Home(tmp_path / "file" / "home").held(),
    ):
        pass


def test_recorded_processes_are_known_by_start_times(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = processes.find(os.getpid())
    assert own is not None
    home.record({"here": own, "gone": Process(own.pid, own.started - 1)})
    assert home.recorded() == {"here": own}
    monkeypatch.setattr(processes, "boot", lambda: "another start")
    assert home.recorded() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"boot": 1, "processes": []}'])
def test_a_record_that_cannot_be_read_names_nothing(home: Home, text: str) -> None:
    (home.folder / "processes.json").write_text(text, encoding="utf-8")
    assert home.recorded() == {}


def test_what_is_left_is_found_by_record_and_by_mark(home: Home) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    name, mark = home.mark()
    recorded = subprocess.Popen(sleep, start_new_session=True)
    marked = subprocess.Popen(sleep, start_new_session=True, env={**os.environ, name: mark})
    other = subprocess.Popen(sleep, start_new_session=True, env={**os.environ, name: "another"})
    started = [recorded, marked, other]
    try:
        process = processes.find(recorded.pid)
        assert process is not None
        home.record({"recorded": process})
        # Until it has become the program, a new process still has its parent's environment.
        processes.wait_until(lambda: len(home.left()) == 2, 10)
        assert {each.pid for each in home.left()} == {recorded.pid, marked.pid}
        assert [each.pid for each in home.left(spared=process)] == [marked.pid]
        processes.end(home.left)
        assert other.poll() is None
    finally:
        for child in started:
            child.kill()
            child.wait(10)


def test_a_new_log_keeps_the_one_before(home: Home) -> None:
    log = home.log("scheduler")
    log.write_text("first", encoding="utf-8")
    again = home.log("scheduler")
    assert again == log
    assert again.read_text(encoding="utf-8") == ""
    assert (home.logs / "scheduler.log.old").read_text(encoding="utf-8") == "first"
    assert mode(again) == 0o600


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("".join(f"line {n}\n" for n in range(40)), encoding="utf-8")
    assert tail(log) == "\n".join(f"    line {n}" for n in range(25, 40))


def test_the_temporary_folder_is_emptied(home: Home) -> None:
    home.clear_temporary()
    (home.temporary / "left").mkdir()
    home.clear_temporary()
    assert list(home.temporary.iterdir()) == []


def test_private_files_are_private_from_the_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_text("public before", encoding="utf-8")
    before = os.umask(0)
    try:
        write_private(path, "secret")
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert path.read_text(encoding="utf-8") == "secret"
    assert [p.name for p in tmp_path.iterdir()] == ["private"]


def test_starting_names_the_page_and_a_missing_lake(home: Home, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    said: list[str] = []

    def told() -> str:
        said.clear()
        launcher = Launcher(LaunchOptions(home.folder, 8080, tmp_path, str(lake)), said.append)
        launcher._welcome(Setup(home, 8080, tmp_path, str(lake), ""))
        return "\n".join(said)

    assert f"  lake      {lake}   (does not exist yet: `capstan demo` creates one)" in told()
    lake.mkdir()
    assert f"  lake      {lake}\n" in told()
    assert "Airflow is ready: http://127.0.0.1:8080" in told()
    assert f"  password  {home.password()} " in told()
