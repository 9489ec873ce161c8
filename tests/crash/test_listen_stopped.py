"""A listener that is interrupted, as a person does it: what it has received is on tape."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support.driver_under_test import PATIENCE

pytestmark = [pytest.mark.rest, pytest.mark.timeout(600)]

RECORDING = Path(__file__).parents[1] / "conformance" / "timely" / "g0_strings_w3" / "worker-0.bin"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_received_is_on_tape(tmp_path: Path, number: signal.Signals) -> None:
    lake, port, printed = tmp_path / "lake", free_port(), tmp_path / "said"
    shell = str(Path(sys.executable).with_name("capstan"))
    words = ["listen", "heard", "--port", str(port), "--workers", "1", "--every", "600"]
    types = ["--time-type", "u64", "--record-type", "string"]
    with printed.open("wb") as errors:
        process = subprocess.Popen(
            [shell, "--lake", str(lake), *words, *types],
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )

        def wait_for(text: str) -> None:
            end = time.monotonic() + PATIENCE
            while text not in printed.read_text(encoding="utf-8"):
                assert process.poll() is None, printed.read_text(encoding="utf-8")
                assert time.monotonic() < end
                time.sleep(0.1)

        wait_for("listening on port")
        data = RECORDING.read_bytes()
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as sender:
            sender.sendall(data[: len(data) * 2 // 3])
        wait_for("worker 0 disconnected")
        process.send_signal(number)
        answer = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode == 0, printed.read_text(encoding="utf-8")
    tape = open_tape(Lake.at(lake), "heard")
    (state,) = index.worker_states(tape, newest_cut(tape))
    assert state.records > 0
    assert not state.closed
    received = f"heard at commit 0: {state.events} events with {state.records} records"
    assert received in " ".join(answer.split())
    assert "worker 0, 127.0.0.1:" in answer
