"""Where two drivers that commit at once would both win, nothing is written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from capstan.errors import BadRequest
from capstan.session import require_one_winner


def session(**settings: str) -> SimpleNamespace:
    given = {f"spark.delta.logStore.{scheme}.impl": name for scheme, name in settings.items()}
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: given))


@pytest.mark.parametrize("lake", ["/data/lake", "hdfs://node/lake", "abfss://c@a/lake", "gs://b/l"])
def test_these_let_one_win(lake: str) -> None:
    require_one_winner(session(), lake)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_s3_needs_a_store_that_does(scheme: str) -> None:
    with pytest.raises(BadRequest) as refused:
        require_one_winner(session(other="x"), f"{scheme}://bucket/lake")  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.exit_code) == ("CAP-LAKE", 2)
    assert f"spark.delta.logStore.{scheme}.impl" in refused.value.hint
    require_one_winner(session(**{scheme: "x"}), f"{scheme}://bucket/lake")  # type: ignore[arg-type]
