"""What long work says while it goes on, without a terminal: a line per step that is done."""

from __future__ import annotations

import pytest

from capstan.cli.output import Output
from capstan.cli.progress import Work, watching
from capstan.steps import reached


@pytest.mark.parametrize(("failed", "ended"), [(False, "is done"), (True, "has failed")])
def test_each_run_of_a_backfill_is_told(failed: bool, ended: str, capsys) -> None:
    with watching(Output.of(as_json=False), Work("backfill r", ("backfill.run",) * 3)):
        reached("backfill.run", replay="r", number=2, of=3, failed=failed)
        reached("too.small", number=1)
    assert capsys.readouterr().err == f"backfill r: run 2 of 3 {ended}\n"
    with watching(Output.of(as_json=True), Work("backfill r")):
        reached("backfill.run", replay="r", number=2, of=3, failed=failed)
    assert capsys.readouterr() == ("", "")
