"""Named points: who hears of them."""

from __future__ import annotations

from contextvars import copy_context
from threading import Barrier, Thread

from capstan.telemetry.instrumentation import emit, subscribe, subscribe_call


def test_calls_that_overlap_hear_of_their_own_points_alone() -> None:
    heard: dict[int, list[object]] = {0: [], 1: []}
    everything: list[object] = []
    together = Barrier(2, timeout=10)

    def call(number: int) -> None:
        with subscribe_call(lambda _, facts: heard[number].append(facts["at"])):
            together.wait()
            emit("capture.begin", at=number)
            # Work of the call in a thread of another, as Spark's for a micro-batch.
            context = copy_context()
            batch = Thread(
                target=context.run, args=(emit, "capture.records"), kwargs={"at": -number}
            )
            batch.start()
            batch.join()
            together.wait()
        emit("capture.late", at=number)

    with subscribe(lambda _, facts: everything.append(facts["at"])):
        threads = [Thread(target=call, args=(number,)) for number in heard]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert heard == {0: [0, 0], 1: [1, -1]}
    assert sorted(map(str, everything)) == ["-1", "0", "0", "0", "1", "1"]
