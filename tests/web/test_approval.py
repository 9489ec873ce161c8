"""A person decides between audit and publish: approved and taken back, or rejected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from capstan.ledger.runs import Step, read_history
from capstan.testing.rest import until

if TYPE_CHECKING:
    from conftest import World

REPLAY = "capstan_replay"
STREAMS = Path(__file__).parents[2] / "dags" / "streams.yaml"
RANGE = {"since": "2013-01-01", "until": "2013-01-02"}


def waiting(world: World, into: str) -> tuple[str, dict[str, object]]:
    """A run that waits for a person, and what its replay has told."""
    run = world.rest.trigger(REPLAY, {**RANGE, "into": into, "approve": True})

    def asked() -> bool | None:
        state = world.rest.task(REPLAY, run, "approve")["state"]
        assert state not in ("failed", "success", "skipped", "upstream_failed")
        return True if state in ("awaiting_input", "deferred") else None

    until(asked, 300)
    told = world.rest.xcom(REPLAY, run, "replay")
    assert isinstance(told, dict)
    return run, told


def decide(world: World, run: str, option: str, reason: str) -> None:
    path = f"/dags/{REPLAY}/dagRuns/{quote(run)}/taskInstances/approve/-1/hitlDetails"
    world.rest.call("PATCH", path, {"chosen_options": [option], "params_input": {"reason": reason}})


@pytest.mark.slow
def test_what_is_approved_is_published_and_can_be_taken_back(captured: World) -> None:
    run, told = waiting(captured, "approved")
    # No slot is held, no Spark app waits, and readers of the target see nothing yet.
    assert captured.launched.spark() == []
    assert captured.rows("approved") == []
    assert told["published"] is False
    assert told["audit"]["passed"]  # type: ignore[index]
    assert told["diff"]["added"] == told["records"] > 0  # type: ignore[index,operator]

    decide(captured, run, "Approve", "as agreed")
    captured.rest.require(REPLAY, run)
    certificate = captured.rest.xcom(REPLAY, run, "publish")
    assert isinstance(certificate, dict)
    assert certificate["published"]
    assert certificate["approval"]["by"] == "admin"
    assert certificate["approval"]["reason"] == "as agreed"
    assert len(captured.rows("approved")) == told["records"]

    shell = Path(sys.executable).with_name("capstan")
    words = ["rollback", str(certificate["run"]), "--lake", captured.lake.root]
    subprocess.run([shell, *words, "--streams", str(STREAMS)], check=True, timeout=300)
    assert captured.rows("approved") == []


@pytest.mark.slow
def test_what_is_rejected_leaves_the_target_and_holds_nothing(captured: World) -> None:
    run, told = waiting(captured, "rejected")
    decide(captured, run, "Reject", "too many")
    assert captured.rest.wait(REPLAY, run) == "failed"
    said = [line for line in captured.rest.log(REPLAY, run, "publish").splitlines() if line.strip()]
    last = [line for line in said if not line.startswith("::")][-1]
    assert last.startswith("CAP-REJECTED: "), said
    assert captured.rows("rejected") == []
    history = read_history(captured.lake, str(told["run"]))
    assert history.last.step is Step.REJECTED
    assert history.last.detail["reason"] == "too many"
    assert list(Path(captured.lake.root, "staging").glob(f"{told['run']}*"))

    # Nothing is held: the same range can be replayed into the same table.
    again = captured.replay(**RANGE, into="rejected")
    assert again["published"]
