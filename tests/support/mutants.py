"""Mutation tests: change random lines of the product, and run the tests on each change.

    python -m tests.support.mutants --lines=30 --seed=8 --tests=tests/unit,tests/property

A line of JSON reports each change, and the test that failed on it. The work is done in a copy of
the tree, or of another revision with `--ref`: there the same lines are changed if they exist in the
same functions.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from capstan.spark.project_home import project_home
from tests.support.affected_tests import files_for
from tests.support.mutations import Spot, changed, changes, spots, told

SELECT: Final = (
    "{python} -m pytest -x -q -p no:cacheprovider --hypothesis-seed=2013 --timeout=180 {tests}"
)
_NO_PRODUCT: Final = frozenset({"__init__"})
_LEFT_OUT: Final = shutil.ignore_patterns(
    *(".git", ".venv", ".cache", ".hypothesis", ".*_cache", "__pycache__", "build", "*.egg-info"),
    *("lake", "chaos", "soak", "bench-*.json", "spark-warehouse"),
)
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_NOTHING_RAN: Final = 5
_WRONG_WORDS: Final = (3, 4)
_GRACE: Final = 30.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a line.

    Attributes:
        file: The module, below the root.
        spot: Its statement.
        place: Index among the possible changes of the statement.
    """

    file: Path
    spot: Spot
    place: int


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a mutant.

    Attributes:
        verdict: `killed`, `survived`, `out of time`; `untested` if no test reaches it, and
            `skipped` if its line does not exist.
        by: The test that failed.
        seconds: Duration of the tests.
        files: Number of test files chosen.
    """

    verdict: str
    by: str | None = None
    seconds: float = 0.0
    files: int = 0


def draw(root: Path, lines: int, seed: int) -> list[Mutant]:
    """Draw lines of the product, from its packages in turn, and a change of each."""
    product = root / "lib" / "capstan"
    rooms = sorted({path.stem for path in product.iterdir() if path.suffix in ("", ".py")})
    left: dict[str, list[Mutant]] = {}
    for room in rooms:
        files = sorted([*product.glob(f"{room}.py"), *product.glob(f"{room}/**/*.py")])
        if room not in _NO_PRODUCT and files:
            # Each package has its own choice: changes in one do not affect the lines of another.
            choice = random.Random(f"{seed} {room}")
            left[room] = [item for file in files for item in _of(root, file, choice)]
            choice.shuffle(left[room])
    choice, turns = random.Random(seed), list(left)
    drawn: list[Mutant] = []
    while len(drawn) < lines and any(left.values()):
        choice.shuffle(turns)
        drawn += [left[room].pop() for room in turns if left[room]]
    return drawn[:lines]


def _of(root: Path, file: Path, choice: random.Random) -> Iterator[Mutant]:
    """Each statement of a module, with a change whose kind is drawn first."""
    source = file.read_text(encoding="utf-8")
    for spot in spots(source):
        kinds = [change.kind for change in changes(source, spot)]
        kind = choice.choice(sorted(set(kinds)))
        places = [place for place, item in enumerate(kinds) if item == kind]
        yield Mutant(file.relative_to(root), spot, choice.choice(places))


@dataclass
class Tree:
    """A copy of the tree, in which one module after the other is changed.

    Attributes:
        root: Its folder.
        select: Command that runs tests, with placeholders `{python}` and `{tests}`.
        seconds: Time limit of the tests on a mutant.
        broken: Tests that fail without a change, and are left out.
        sound: Tests that pass without a change.
    """

    root: Path
    select: str = SELECT
    seconds: float = 600.0
    broken: set[str] = field(default_factory=set)
    sound: set[str] = field(default_factory=set)

    def judge(self, mutant: Mutant, wanted: Sequence[str]) -> Found:
        """Run the tests that reach a mutant, until one fails."""
        path = self.root / mutant.file
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        where = (mutant.spot.function, mutant.spot.text, mutant.spot.number)
        same = [s for s in spots(before) if (s.function, s.text, s.number) == where]
        if not same:
            return Found("skipped")
        chosen = files_for(self.root, mutant.file, wanted)
        files = sum(map(len, chosen.values()))
        if not files:
            return Found("untested")
        after = changed(before, changes(before, same[0])[mutant.place])
        left = self.seconds
        for tests in chosen.values():
            while True:
                self._write(path, after)
                code, name, took = self._run(tests, left)
                self._write(path, before)
                left -= took
                spent = round(self.seconds - left, 1)
                if code is None:
                    return Found("out of time", None, spent, files)
                if not code or code == _NOTHING_RAN:
                    break
                if self._is_sound(name):
                    return Found("killed", name, spent, files)
        return Found("survived", None, round(self.seconds - left, 1), files)

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes without a change."""
        if test not in self.sound:
            code, _, _ = self._run([test], self.seconds)
            (self.broken if code else self.sound).add(test)
        return test in self.sound

    def _run(self, tests: Sequence[str], seconds: float) -> tuple[int | None, str, float]:
        """Exit code, None if it takes too long; the failed test; seconds."""
        words = [
            word.format(python=sys.executable, tests="{}") for word in shlex.split(self.select)
        ]
        command = [item for word in words for item in (tests if word == "{}" else [word])]
        command += [f"--deselect={test}" for test in sorted(self.broken)]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=environment(self.root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            output, code = _output(process, max(seconds, 1.0))
        if code in _WRONG_WORDS:
            raise ValueError(f"{shlex.join(command)} ended with {code}: {output[-2000:]}")
        failed = _FAILED.search(output)
        name = failed.group(1) if failed else tests[0]
        return code, name, time.monotonic() - began

    def _write(self, path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        # Python identifies a compiled module by its size and the second of its writing.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _output(process: subprocess.Popen[str], seconds: float) -> tuple[str, int | None]:
    """Output and exit code of tests; None if they and their child processes were stopped."""
    for patience, end in ((seconds, signal.SIGINT), (_GRACE, signal.SIGKILL)):
        try:
            output, _ = process.communicate(timeout=patience)
            return output, process.returncode if patience is seconds else None
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, end)
    return "", None


def environment(root: Path) -> dict[str, str]:
    """Environment in which a Python, and its child processes, imports the product of a tree."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CAPSTAN_"))}
    seeds = {"PYTHONHASHSEED": "2013", "CAPSTAN_STATE_SEED": "2013"}
    return {**kept, **seeds, "PYTHONPATH": f"{root / 'lib'}{os.pathsep}{root}"}


def copied(root: Path, folder: Path, ref: str | None = None) -> Path:
    """A copy of the tree in a folder, as it is or at a revision; fetched files are shared."""
    tree = folder / "tree"
    if ref is None:
        shutil.copytree(root, tree, ignore=_LEFT_OUT, symlinks=True)
    else:
        command = ["git", "-C", str(root), "archive", ref]
        packed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(tree, filter="data")
    if (root / ".cache").exists():
        (tree / ".cache").symlink_to(root / ".cache")
    requested = [sys.executable, "-c", "import capstan; print(*capstan.__path__)"]
    given = environment(tree)
    imported = subprocess.run(
        requested, env=given, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    if Path(imported.strip()) != tree / "lib" / "capstan":
        raise ValueError(f"tests would import {imported.strip()}, not the changed code in {tree}")
    return tree


def report(root: Path, mutant: Mutant, found: Found, ref: str | None) -> dict[str, object]:
    """The line of JSON of a mutant."""
    source = (root / mutant.file).read_text(encoding="utf-8")
    change = changes(source, mutant.spot)[mutant.place]
    before, after = told(source, mutant.spot, change)
    place = {"file": str(mutant.file), "line": mutant.spot.line, "function": mutant.spot.function}
    return {**place, "kind": change.kind, "before": before, "after": after, "ref": ref} | asdict(
        found
    )


def main(arguments: Sequence[str] | None = None, say: Callable[[str], object] = print) -> int:
    """Draw mutants, run tests on each, and report; returns 1 if one has survived."""
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--tests", default="tests", help="files and folders, separated by commas")
    parser.add_argument("--select", default=SELECT, help="command that runs {tests}")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit per mutant")
    parser.add_argument("--ref", help="revision of the tests and the product")
    parser.add_argument("--root", type=Path, default=project_home())
    options = parser.parse_args(arguments)
    root, counts = options.root.absolute(), Counter[str]()
    drawn = draw(root, options.lines, options.seed)
    with tempfile.TemporaryDirectory(prefix="capstan-mutants-") as folder:
        tree = Tree(copied(root, Path(folder), options.ref), options.select, options.seconds)
        for mutant in drawn:
            actual = tree.judge(mutant, options.tests.split(","))
            counts[actual.verdict] += 1
            say(json.dumps(report(root, mutant, actual, options.ref)))
        told_of = {"verdicts": dict(counts), "failing_unchanged": sorted(tree.broken)}
        print(json.dumps(told_of), file=sys.stderr)
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
