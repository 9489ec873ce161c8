"""A driver that is killed or held in its work: `python -m tests.support.driver_under_test`.

Its first argument is a JSON file with a list of steps, `{"action", "arguments", "point", "until"}`;
actions and arguments are those of `tests.support.driver_actions`. The optional second argument is
the Spark master; the default is this machine. The driver starts one step after the other, each in
its own thread, and lets it work until it reaches its point of `capstan.telemetry.instrumentation`
(`POINT`, or `POINT:N` for the N-th time); a step with an empty point runs to its end. At its point
a step waits: until the file `until` appears, having created `until`.held; or, without such a file,
for good. Once all steps of the second kind have arrived, the whole driver is killed with SIGKILL:
its JVM first, then itself. So one JVM start is enough to interrupt many pieces of work, each at its
own point. A driver that is attached to another JVM (`tests.support.shared_jvm`) is killed without
it.

The result of an ended action is in the file `until`.ended, as JSON: its result, or the error with
its exit code as `exit`.

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

from capstan.errors.translation import to_capstan_error
from capstan.telemetry import instrumentation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 300.0
"""Maximum seconds for anything on a busy machine."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action of another driver, and the point at which it is stopped.

    Attributes:
        action: Name for `tests.support.driver_actions.act`.
        arguments: Its arguments.
        point: `POINT` or `POINT:N`; empty to run to the end.
        until: File that releases it; None to kill the driver there.
        may_end: Whether it may end without reaching its point.
    """

    action: str
    arguments: dict[str, object]
    point: str = ""
    until: str | None = None
    may_end: bool = False

    @property
    def held(self) -> Path:
        """File that shows that it waits."""
        return Path(f"{self.until}.held")

    @property
    def ended(self) -> Path:
        """File with its result."""
        return Path(f"{self.until}.ended")

    def to_json(self) -> dict[str, object]:
        """The step as part of a script."""
        return asdict(self)


@dataclass(slots=True)
class _Stop:
    """Point at which the most recently started action is stopped."""

    step: Step
    left: int
    arrived: threading.Event = field(default_factory=threading.Event)

    def listen(self, point: str, _facts: dict[str, object]) -> None:
        """Count arrivals at the point; wait at the last one."""
        if point != self.step.point.partition(":")[0]:
            return
        self.left -= 1
        if self.left != 0:
            return
        if self.step.until is not None:
            self.step.held.touch()
        self.arrived.set()
        if self.step.until is not None:
            wait_for(Path(self.step.until), 6 * PATIENCE)
        else:
            threading.Event().wait()


def kill_driver() -> None:
    """Kill this driver: its JVM, if it started one, with its children; then this process."""
    for process in _descendants(os.getpid()):
        os.kill(process, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(file: Path, seconds: float = PATIENCE) -> None:
    """Wait until `file` exists.

    Raises:
        TimeoutError: It did not appear in time.
    """
    end = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{file} did not appear in {seconds} s")
        time.sleep(0.05)


def _descendants(process: int) -> list[int]:
    """The child processes of `process` and their descendants, nearest first."""
    children: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            children += map(int, (task / "children").read_text(encoding="ascii").split())
        except OSError:
            continue  # The thread has just ended.
    return children + [below for child in children for below in _descendants(child)]


def run(spark: SparkSession, script: Sequence[Step], count: Path | None = None) -> None:
    """Run a script; does not return if a step of it kills the driver.

    Args:
        spark: The session.
        script: The steps.
        count: File for the number of interrupted steps.

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
    """Start an action; returns when it waits at its point, or has ended."""
    stop = _Stop(step, int(step.point.partition(":")[2] or 1))
    failures: list[BaseException] = []
    # A session can run one query per name, and has one view per name.
    session = spark.newSession()

    def work() -> None:
        try:
            _end(step, _result(session, step))
        except BaseException as error:
            traceback.print_exc()
            failures.append(error)
            _end(step, {"exit": 1, "error": type(error).__name__, "message": str(error)})
        finally:
            stop.arrived.set()

    thread = threading.Thread(target=work, daemon=True)
    # All other actions wait: only this one can reach the point now.
    with instrumentation.subscribe(stop.listen):
        thread.start()
        if not stop.arrived.wait(PATIENCE):
            raise RuntimeError(f"{step} did not reach its point in time")
    # An action at its point waits there; all others have ended, or are about to.
    reached = bool(step.point) and stop.left == 0
    if not reached:
        thread.join()
    if failures or (step.point and not reached and not step.may_end):
        raise RuntimeError(f"{step} ended before it reached its point")
    return thread


def _result(spark: SparkSession, step: Step) -> dict[str, object]:
    from tests.support.driver_actions import act

    try:
        return {"exit": 0, **act(spark, step.action, step.arguments)}
    except Exception as error:
        if step.until is None:
            raise
        traceback.print_exc()
        translated = to_capstan_error(error)
        return {"exit": translated.exit_code, **translated.to_json()}


def _end(step: Step, result: dict[str, object]) -> None:
    if step.until is not None:
        whole = Path(f"{step.until}.part")
        whole.write_text(json.dumps(result, default=str), encoding="utf-8")
        whole.rename(step.ended)


def main(script: Path, master: str | None = None) -> None:
    """Run the script in a file, in a new session."""
    from capstan.spark.session import build_session
    from tests.support.small_spark import MASTER, SHRUNK

    steps = [Step(**step) for step in json.loads(script.read_text(encoding="utf-8"))]
    spark = build_session("capstan-other", master=master or MASTER, extra=SHRUNK)
    script.with_name(f"{script.name}.begun").touch()
    run(spark, steps, script.with_name(f"{script.name}.cut"))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
