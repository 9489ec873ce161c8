"""The folder that Airflow lives in: for its owner alone, one launcher at a time, what is left."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from capstan.airflow.local import processes
from capstan.airflow.local.home import MARK, USER, Home, write_private
from capstan.airflow.local.launcher import Launcher
from capstan.airflow.local.processes import tail
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


def test_nobody_else_can_enter_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.folder.mkdir(mode=0o755)
    with home.held():
        assert mode(home.folder) == 0o700


def test_a_password_is_made_once_and_for_its_owner_alone(home: Home) -> None:
    password = home.password()
    assert home.password() == password
    assert mode(home.passwords) == 0o600
    assert json.loads(home.passwords.read_text(encoding="utf-8")) == {USER: password}


def test_two_homes_share_no_password(tmp_path: Path, home: Home) -> None:
    other = Home(tmp_path / "other")
    with other.held():
        assert other.password() != home.password()


def test_a_password_that_someone_chose_stays(home: Home) -> None:
    home.passwords.write_text('{"admin": "chosen", "ann": "hers"}', encoding="utf-8")
    assert home.password() == "chosen"
    assert "hers" in home.passwords.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", '{"admin": ', "[]", "{}"])
def test_passwords_cut_short_are_made_again(home: Home, text: str) -> None:
    home.passwords.write_text(text, encoding="utf-8")
    assert home.password() == home.password() != ""


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


def test_what_is_left_is_found_by_its_output_and_by_its_mark(home: Home) -> None:
    def sleeping(program: str = "", **given: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", f"{program}\nimport time; time.sleep(600)"]
        return subprocess.Popen(command, start_new_session=True, **given)  # type: ignore[call-overload, no-any-return]

    # Like PostgreSQL, whose children have sessions of their own.
    forks = "import os\nif os.fork() == 0: os.setsid()"
    with home.log("server").open("ab") as log:
        writing = sleeping(forks, stdout=log, stderr=log)
    folder = str(home.folder)
    marked = sleeping(env={**os.environ, MARK: folder})
    other = sleeping(env={**os.environ, MARK: f"{folder}/another"})
    started = [writing, marked, other]
    try:
        process = processes.find(writing.pid)
        assert process is not None
        # Until it has become the program, a new process still has its parent's environment.
        assert processes.wait_until(lambda: len(home.left()) == 3 and process.children(), 10)
        children = {child.pid for child in process.children()}
        assert {item.pid for item in home.left()} == {writing.pid, *children, marked.pid}
        processes.wait_until(lambda: len(home.left(spared=process)) == 1, 10)
        assert [item.pid for item in home.left(spared=process)] == [marked.pid]
        processes.end(home.left)
        assert process.children() == []
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
    printed: list[str] = []

    def told() -> str:
        printed.clear()
        launcher = Launcher(Setup(home, 8080, tmp_path, str(lake)), printed.append)
        launcher._welcome(str(lake))
        return "\n".join(printed)

    assert f"  lake      {lake}   (does not exist yet: `capstan demo` creates one)" in told()
    lake.mkdir()
    assert f"  lake      {lake}\n" in told()
    assert "Airflow is ready: http://127.0.0.1:8080" in told()
    assert f"  password  {home.password()} " in told()
