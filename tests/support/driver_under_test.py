"""A driver that is killed, or held, in its work: `python -m tests.support.driver_under_test`.

Its first argument is a JSON file with a list of steps, `{"action", "arguments", "point", "until"}`:
actions and arguments are those of `tests.support.driver_actions`. A second one is the Spark master;
else it is this machine. The driver begins one step after the other, each in a thread of its own,
and lets it work until it reaches its point of `capstan.instrumentation` (`POINT` or `POINT:N` for
the N-th time); one with an empty point works to its end. There it waits: until the file `until`
appears, having made `until`.held; or, without such a file, for good. Once all that wait for good
have got there, the whole driver is killed with SIGKILL: the JVM that it has started, then itself.
So one JVM start is enough to have many pieces of work cut off, each at a point of its own. A driver
that is attached to another JVM (`tests.support.shared_jvm`) is killed without it.

What becomes of an action that ends is in the file `until`.ended, as JSON: the result, or the error
with its exit code as `exit`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from capstan import instrumentation
from capstan.error_translation import to_capstan_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 300.0
"""How long anything may take on a machine that others use as well, in seconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action that another driver is to carry out, and where it is stopped.

    Attributes:
        action: As `tests.support.driver_actions.act` takes it.
        arguments: The same.
        point: `POINT` or `POINT:N`; empty to let it work to its end.
        until: The file that lets it go on; None to kill the driver there.
        may_end: Whether it may end without having reached its point.
    """

    action: str
    arguments: dict[str, object]
    point: str = ""
    until: str | None = None
    may_end: bool = False

    @property
    def held(self) -> Path:
        """The file that says that it waits."""
        return Path(f"{self.until}.held")

    @property
    def ended(self) -> Path:
        """The file that says what became of it."""
        return Path(f"{self.until}.ended")

    def to_json(self) -> dict[str, object]:
        """The step as it stands in a script."""
        return asdict(self)


@dataclass(slots=True)
class _Stop:
    """Where the action that was begun last is stopped."""

    step: Step
    left: int
    there: threading.Event = field(default_factory=threading.Event)

    def listen(self, point: str, _facts: dict[str, object]) -> None:
        """Count how often the point is reached; the last time, wait there."""
        if point != self.step.point.partition(":")[0]:
            return
        self.left -= 1
        if self.left != 0:
            return
        if self.step.until is not None:
            self.step.held.touch()
        self.there.set()
        if self.step.until is not None:
            wait_for(Path(self.step.until), 6 * PATIENCE)
        else:
            threading.Event().wait()


def kill_driver() -> None:
    """Kill this driver: its JVM, if it started one, and whatever that did; then this process."""
    for process in _descendants(os.getpid()):
        os.kill(process, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(file: Path, seconds: float = PATIENCE) -> None:
    """Wait until `file` is there.

    Raises:
        TimeoutError: It did not appear in time.
    """
    end = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{file} did not appear in {seconds} s")
        time.sleep(0.05)


def _descendants(process: int) -> list[int]:
    """The processes that `process` started, and those that they did, nearest first."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text(encoding="ascii").split())
        except OSError:
            continue  # The thread has just ended.
    return found + [below for child in found for below in _descendants(child)]


def run(spark: SparkSession, script: Sequence[Step], count: Path | None = None) -> None:
    """Carry out a script; does not come back where a step of it kills the driver.

    Args:
        spark: The session.
        script: The steps.
        count: Gets how many of them were cut off.

    Raises:
        RuntimeError: An action ended before it had reached its point, or failed.
    """
    threads = [_begin(spark, step) for step in script]
    waiting = zip(script, threads, strict=True)
    cut = sum(bool(s.point) and s.until is None and t.is_alive() for s, t in waiting)
    if count is not None:
        count.write_text(str(cut), encoding="utf-8")
    if cut:
        kill_driver()
    for thread in threads:
        thread.join()


def _begin(spark: SparkSession, step: Step) -> threading.Thread:
    """Begin an action, and come back when it waits at its point, or has ended without one."""
    stop = _Stop(step, int(step.point.partition(":")[2] or 1))
    failures: list[BaseException] = []
    # A session has one query of a name at work, and one view of a name.
    own = spark.newSession()

    def work() -> None:
        try:
            _end(step, _result(own, step))
        except BaseException as error:
            traceback.print_exc()
            failures.append(error)
            _end(step, {"exit": 1, "error": type(error).__name__, "message": str(error)})
        finally:
            stop.there.set()

    thread = threading.Thread(target=work, daemon=True)
    # No other action is at work now, but those that wait: whoever gets to the point is this one.
    with instrumentation.subscribe(stop.listen):
        thread.start()
        if not stop.there.wait(PATIENCE):
            raise RuntimeError(f"{step} did not get there in time")
    # Whoever has reached its point waits there; all others have ended, or are about to.
    reached = bool(step.point) and stop.left == 0
    if not reached:
        thread.join()
    if failures or (step.point and not reached and not step.may_end):
        raise RuntimeError(f"{step} ended before it got there")
    return thread


def _result(spark: SparkSession, step: Step) -> dict[str, object]:
    from tests.support.driver_actions import act

    try:
        return {"exit": 0, **act(spark, step.action, step.arguments)}
    except Exception as error:
        if step.until is None:
            raise
        traceback.print_exc()
        found = to_capstan_error(error)
        return {"exit": found.exit_code, **found.to_json()}


def _end(step: Step, result: dict[str, object]) -> None:
    if step.until is not None:
        whole = Path(f"{step.until}.part")
        whole.write_text(json.dumps(result, default=str), encoding="utf-8")
        whole.rename(step.ended)


def main(script: Path, master: str | None = None) -> None:
    """Carry out the script in a file, with a session of its own."""
    from capstan.spark.session import build_session
    from tests.support.small_spark import MASTER, SHRUNK

    found = [Step(**step) for step in json.loads(script.read_text(encoding="utf-8"))]
    spark = build_session("capstan-other", master=master or MASTER, extra=SHRUNK)
    script.with_name(f"{script.name}.begun").touch()
    run(spark, found, script.with_name(f"{script.name}.cut"))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
