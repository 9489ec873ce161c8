"""Changes at random: each compiles and changes something, and tests that see it are told."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.affected_tests import files_for
from tests.support.mutants import Found, Tree, copied, draw, main, report
from tests.support.mutations import changed, changes, spots, told

SOURCE = dedent(
    '''
    """A module."""
    LIMIT = 3

    class Box:
        """A class."""

        size: int = 1

        def fits(self, n: int, words: list[str]) -> bool:
            """Whether it fits."""
            self.seen = f"ä {n}"
            if not words and n < LIMIT:
                raise ValueError("code", "a text for people")
            for word in words:
                if word == "no":
                    continue
            assert n is not None
            return max(n, 2) + 1 in (1, 2)
    '''
)
SUMS = '''
"""Sums."""


def total(numbers):
    """The sum of what is positive."""
    return sum(number for number in numbers if number > 0)
'''
UNSEEN = '''
"""Nobody looks."""


def unseen(numbers):
    """Their count."""
    return len(numbers)
'''
TEST = """
import os, subprocess, sys
from capstan.sums.adding import total

def test_total_in_a_process_of_its_own():
    program = "from capstan.sums.adding import total; print(total([3, -1]))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout == "3\\n", said.stderr

def test_that_fails_anyhow():
    assert "PYTEST_ADDOPTS" in os.environ, "it never is"
"""
SELECT = "{python} -m pytest -x -q -p no:cacheprovider -p no:hypothesispytest {tests}"


def all_changes(source: str) -> list[tuple[str, str, str]]:
    return [
        (change.kind, *told(source, spot, change))
        for spot in spots(source)
        for change in changes(source, spot)
    ]


def test_changes_are_small_and_compile() -> None:
    actual = all_changes(SOURCE)
    assert {
        ("text", 'self.seen = f"ä {n}"', "self.seen = f'ä {n}x'"),
        ("deleted", 'self.seen = f"ä {n}"', "pass"),
        ("and, or", "if not words and n < LIMIT", "if (not words or n < LIMIT)"),
        ("not removed", "if not words and n < LIMIT", "if (words) and n < LIMIT"),
        ("comparison", "if not words and n < LIMIT", "if not words and (n <= LIMIT)"),
        ("not added", 'if word == "no"', "if (not (word == 'no'))"),
        ("text", 'if word == "no"', "if word == 'nox'"),
        ("deleted", "continue", "pass"),
        ("returned nothing", "return max(n, 2) + 1 in (1, 2)", "return None"),
        ("arguments", "return max(n, 2) + 1 in (1, 2)", "return (max(2, n)) + 1 in (1, 2)"),
        ("operator", "return max(n, 2) + 1 in (1, 2)", "return (max(n, 2) - 1) in (1, 2)"),
        ("constant", "return max(n, 2) + 1 in (1, 2)", "return max(n, 3) + 1 in (1, 2)"),
    } <= set(actual)
    # What is outside of functions, asserted, or said to people stays as it is.
    assert not [item for item in actual if "LIMIT =" in item[1] or "assert" in item[1]]
    assert not [item for item in actual if "a text for peoplex" in item[2]]
    whole = ast.dump(ast.parse(SOURCE))
    for spot in spots(SOURCE):
        assert spot.function == "Box.fits"
        for change in changes(SOURCE, spot):
            assert ast.dump(ast.parse(changed(SOURCE, change))) != whole


def test_a_statement_is_found_again_where_others_came_before_it() -> None:
    later = SOURCE.replace("self.seen =", "words = [*words]\n        self.seen =")
    known = {
        (s.function, s.text, s.number): [c.text for c in changes(later, s)] for s in spots(later)
    }
    for spot in spots(SOURCE):
        here = [change.text for change in changes(SOURCE, spot)]
        assert known[spot.function, spot.text, spot.number] == here


@pytest.fixture
def little(tmp_path: Path) -> Path:
    """A tree with three rooms, of which tests reach one, another by what they share."""
    root = tmp_path / "root"
    for name, text in {
        "lib/capstan/__init__.py": "",
        "lib/capstan/sums/__init__.py": "",
        "lib/capstan/sums/adding.py": SUMS,
        "lib/capstan/alone.py": UNSEEN,
        "tests/bench/__init__.py": UNSEEN,
        "tests/support/__init__.py": "",
        "tests/support/shared.py": "from capstan.sums import adding",
        "tests/unit/test_adding.py": TEST,
        "tests/spark/test_sums_more.py": "",
        "tests/spark/test_other.py": "from tests.support.shared import adding",
        "tests/spark/test_none.py": "import os",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_the_cheapest_tests_come_first_and_the_nearest_of_them(little: Path) -> None:
    adding = Path("lib/capstan/sums/adding.py")
    chosen = files_for(little, adding, ["tests"])
    assert list(chosen) == ["unit", "spark"]
    assert chosen["unit"] == ["tests/unit/test_adding.py"]
    assert chosen["spark"] == ["tests/spark/test_sums_more.py", "tests/spark/test_other.py"]
    assert list(files_for(little, adding, ["tests/unit"])) == ["unit"]
    assert files_for(little, Path("lib/capstan/alone.py"), ["tests"]) == {}


def test_mutants_cover_all_packages_and_repeat_by_seed(little: Path) -> None:
    drawn = draw(little, 30, 8)
    assert {str(item.file) for item in drawn} == {
        "lib/capstan/alone.py",
        "lib/capstan/sums/adding.py",
    }
    assert [report(little, item, Found("skipped"), None) for item in drawn] == [
        report(little, item, Found("skipped"), None) for item in draw(little, 30, 8)
    ]
    assert len(draw(little, 1, 8)) == 1


def test_mutants_are_caught_in_child_processes(
    little: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--root", str(little), "--lines=2", "--tests=tests/unit", f"--select={SELECT}"]
    printed: list[str] = []
    assert main(words, printed.append) == 0
    actual = {line["file"]: line for line in map(json.loads, printed)}
    assert actual["lib/capstan/alone.py"]["verdict"] == "untested"
    seen = actual["lib/capstan/sums/adding.py"]
    assert (seen["verdict"], seen["function"], seen["files"]) == ("killed", "total", 1)
    assert seen["by"] == "tests/unit/test_adding.py::test_total_in_a_process_of_its_own"
    assert seen["before"] == "return sum(number for number in numbers if number > 0)"
    assert seen["after"] != seen["before"]
    assert json.loads(capsys.readouterr().err)["verdicts"] == {"untested": 1, "killed": 1}
    assert (little / "lib/capstan/sums/adding.py").read_text(encoding="utf-8") == SUMS


def test_what_fails_anyhow_finds_nothing_out(little: Path, tmp_path: Path) -> None:
    test = little / "tests/unit/test_adding.py"
    text = test.read_text(encoding="utf-8").replace('"3\\n"', "said.stdout")
    test.write_text(text, encoding="utf-8")
    tree = Tree(copied(little, tmp_path), SELECT)
    (mutant,) = [item for item in draw(little, 2, 8) if "sums" in str(item.file)]
    assert tree.judge(mutant, ["tests/unit"]).verdict == "survived"
    assert tree.broken == {"tests/unit/test_adding.py::test_that_fails_anyhow"}
    slow = Tree(tree.root, "{python} -c 'import time; time.sleep(60)' {tests}", seconds=0.5)
    assert slow.judge(mutant, ["tests/unit"]).verdict == "out of time"


def test_a_revision_has_its_own_tests_and_may_lack_the_line(little: Path, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        subprocess.run(["git", "-C", str(little), *who, *words], check=True, capture_output=True)

    git("init")
    git("add", "-A")
    git("commit", "-m", "before")
    test = little / "tests/unit/test_adding.py"
    test.write_text("from capstan.sums import adding\n", encoding="utf-8")
    path = little / "lib/capstan/sums/adding.py"
    path.write_text(SUMS.replace("def total", "\ndef total"), encoding="utf-8")
    (mutant,) = [item for item in draw(little, 2, 8) if "sums" in str(item.file)]
    tree = Tree(copied(little, tmp_path, "HEAD"), SELECT)
    assert tree.judge(mutant, ["tests/unit"]).verdict == "killed"
    path.write_text(SUMS.replace("> 0", "> 7"), encoding="utf-8")
    (mutant,) = [item for item in draw(little, 2, 8) if "sums" in str(item.file)]
    assert tree.judge(mutant, ["tests/unit"]).verdict == "skipped"
