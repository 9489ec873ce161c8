"""Chaos that is taken up again."""

from __future__ import annotations

import pytest

from tests.support.chaos import Chaos, main


def test_a_folder_goes_on_with_the_seed_that_it_was_begun_with(tmp_path, capsys) -> None:
    Chaos(tmp_path, 7)
    with pytest.raises(SystemExit) as ended:
        main(["--folder", str(tmp_path), "--seed", "8", "--kills", "0"])
    assert ended.value.code == 2
    assert "continues with seed 7: omit the seed" in capsys.readouterr().err
    assert Chaos(tmp_path, 8).progress.seed == 7
