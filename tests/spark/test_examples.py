"""The programs of `examples`: what they print, each in a process and a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "repair_a_table": """
published: [600, 2200, 3800, 5400, 7000]
would change: 3 rows
repaired: [600, 22, 38, 54, 7000]
rolled back: [600, 2200, 3800, 5400, 7000]
""",
    "attach_to_a_query": """
on tape: 10 records
on tape: 20 records
replayed: [0, 2, 4, 6, 8, 10, 12, 14]
""",
    "follow_sessions": """
after file 0: [('ada', 2)]
after file 1: [('ada', 2), ('ada', 1), ('eve', 3)]
""",
}


@pytest.mark.rest
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.py"))])
def test_a_program_prints_what_it_says(name: str, tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path / "work")]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == PRINTED[name].strip()
