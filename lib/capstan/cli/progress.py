"""Progress on standard error, driven by the named points of the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from capstan.cli.output import CommandOutput
from capstan.telemetry.instrumentation import subscribe
from capstan.telemetry.structured_logging import owns_standard_error

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work whose progress is shown.

    Attributes:
        points: The named points it will pass, when known; their count is the progress total.
    """

    title: str
    points: tuple[str, ...] = ()


_REPLAY = ("verify", "claim", "intent", "staging", "audit", "publish", "coverage", "certificate")
_DIRECT = ("verify", "claim", "intent", "publish", "audit", "coverage", "certificate")
_HELD = ("verify", "claim", "intent", "staging", "audit", "audited")
IMPORT = ("import.survey", "import.records", "import.workers", "import.events")
"""The points of an import of files, unless they are already on tape."""
ROLLBACK = ("rollback.publish", "rollback.coverage", "rollback.ledger")
"""The points of a rollback."""

# The step that a point completes; points that are not here are too small to show.
_DONE: Mapping[str, Callable[[Facts], str]] = {
    "verify.events": lambda facts: f"{facts.get('read', 0):,} events verified",
    "verify.deep": lambda _: "records compared with their events",
    "replay.verify": lambda facts: f"recordings of {facts.get('workers')} workers are valid",
    "replay.changed": lambda facts: (
        f"{facts.get('into')}: {facts.get('change')} has changed published rows; "
        "`capstan replay` over their times restores them"
    ),
    "replay.claim": lambda facts: f"{facts.get('run')}, attempt {facts.get('attempt')}: claimed",
    "replay.fence": lambda _: "earlier attempts are fenced",
    "replay.intent": lambda facts: f"{facts.get('records', 0):,} records to replay",
    "replay.staging": lambda _: "staged",
    "replay.audit": lambda facts: f"{facts.get('cells', 0):,} cells audited",
    "replay.audited": lambda _: "waiting to be published",
    "replay.approved": lambda _: "approved",
    "replay.rejected": lambda _: "rejected",
    "audit.findings": lambda facts: f"{facts.get('findings', 0):,} findings recorded",
    "replay.publish": lambda facts: f"published as version {facts.get('version')}",
    "replay.coverage": lambda _: "coverage written",
    "replay.certificate": lambda _: "certificate written",
    "rollback.publish": lambda facts: f"rolled back in version {facts.get('version')}",
    "rollback.coverage": lambda _: "coverage written",
    "rollback.ledger": lambda _: "ledger written",
    "maintain.compacted": lambda facts: f"{facts.get('table')}: {_compacted(facts)}",
    "maintain.vacuumed": lambda facts: (
        f"{facts.get('table')}: {facts.get('files'):,} files deleted"
    ),
    "maintain.staging": lambda facts: f"{facts.get('cleared')} staged outputs deleted",
    "retire.begun": lambda facts: f"{facts.get('records', 0):,} records to retire",
    "retire.deleted": lambda _: "records deleted",
    "retire.done": lambda _: "ledger written",
    "backfill.run": lambda facts: f"run {facts.get('number')} of {facts.get('of')} {_ended(facts)}",
    "capture.close": lambda _: "closed",
    "idle.events": lambda facts: f"{facts.get('workers')} idle workers advanced by the clock",
    "rescale.events": lambda facts: f"{facts.get('workers')} new workers opened",
    "put-back.records": lambda _: "records put on tape",
    "put-back.events": lambda facts: f"{facts.get('records', 0):,} records put back",
    "source.compared": lambda facts: (
        f"{facts.get('batches', 0):,} batches compared with the source"
    ),
    "tape.upgrade": lambda facts: f"{facts.get('stream')} upgraded to format {facts.get('format')}",
    "import.survey": lambda facts: f"{facts.get('files')} files, {facts.get('events'):,} events",
    "import.records": lambda _: "records written",
    "import.events": lambda _: "events written",
    "export.files": lambda facts: f"{facts.get('files')} files written",
    "export.topics": lambda facts: f"{facts.get('events', 0):,} events sent",
    "topics.records": lambda _: "records written",
    "topics.events": lambda _: "events written",
    "recapture.records": lambda _: "records written",
    "recapture.events": lambda facts: f"commit {facts.get('commit')}: events written",
    "state.rescaled": lambda facts: f"state distributed over {facts.get('peers')} replay workers",
    "listen.ready": lambda facts: f"listening on {_ports(facts)}; Ctrl-C stops it",
    "listen.connected": lambda facts: (
        f"worker {facts.get('worker')} connected from {facts.get('peer')}"
    ),
    "listen.disconnected": lambda facts: f"worker {facts.get('worker')} disconnected",
    "listen.events": lambda facts: f"commit {facts.get('commit')}: {facts.get('events'):,} events",
    "serve.sent": lambda facts: f"{facts.get('peer')}: {facts.get('events', 0):,} events sent",
}
# The step that begins at a point, for the progress line.
_NEXT = {
    "verify.events": "saving",
    "replay.verify": "planning",
    "replay.claim": "reading the tape",
    "replay.intent": "replaying",
    "replay.staging": "auditing",
    "replay.audit": "publishing",
    "replay.publish": "writing ledgers",
    "capture.workers": "writing records",
    "capture.records": "writing late rows",
    "capture.late": "fingerprinting",
    "capture.events": "reading the next batch",
}


def _compacted(facts: Facts) -> str:
    return f"{facts.get('of'):,} files became {facts.get('files'):,}"


def _ended(facts: Facts) -> str:
    return "failed" if facts.get("failed") else "is done"


def _ports(facts: Facts) -> str:
    ports = facts.get("ports")
    numbers = list(ports) if isinstance(ports, tuple) else []
    adjacent = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    if len(numbers) > 1 and adjacent:
        return f"ports {numbers[0]} to {numbers[-1]}"
    return "port " + ", ".join(map(str, numbers))


def replay_work(title: str, *, direct: bool = False, hold: bool = False, runs: int = 1) -> Work:
    """The work of replays; the total is exact unless a run is already published."""
    steps = _DIRECT if direct else _HELD if hold else _REPLAY
    return Work(title, tuple(f"replay.{step}" for step in steps) * runs)


@dataclass(slots=True)
class _Tally:
    """Batches and rows of a capture so far; the total is unknown."""

    batches: int = 0
    rows: int = 0
    late: int = 0

    def add(self, facts: Facts) -> None:
        late = facts.get("late")
        self.batches += 1
        self.rows += facts.get("fed", 0)
        self.late += sum(late.values()) if isinstance(late, Mapping) else 0

    def __str__(self) -> str:
        batches = f"{self.batches} micro-batch" + ("" if self.batches == 1 else "es")
        return f"{self.rows:,} rows in {batches}, {self.late:,} late"


@dataclass(slots=True)
class Watch:
    """The progress display of one piece of work; without a terminal, it has no bar."""

    work: Work
    output: CommandOutput
    bar: Progress | None
    tally: _Tally = field(default_factory=_Tally)

    def listen(self, point: str, facts: dict[str, object]) -> None:
        """Show that a point was reached."""
        done = self._done(point, facts)
        if self.bar is None:
            if done:
                self.output.note(f"{self.work.title}: {done}")
            return
        step = _NEXT.get(point, done or "")
        text = f"{self.tally}, {step}" if point.startswith("capture.") else step
        self.now(text, advance=point in self.work.points)

    def now(self, text: str, *, advance: bool = False) -> None:
        """Show the current step."""
        if self.bar is not None and self.bar.task_ids:
            shown = f"{self.work.title}: {text}" if text else self.work.title
            self.bar.update(self.bar.task_ids[0], description=shown, advance=int(advance))

    def _done(self, point: str, facts: Facts) -> str | None:
        if point == "capture.events":
            self.tally.add(facts)
            return f"{self.tally} so far"
        describe = _DONE.get(point)
        return None if describe is None else describe(facts)


@contextmanager
def watching(output: CommandOutput, work: Work) -> Iterator[Watch]:
    """Show the progress of the `with` block: one moving line, or one line per finished step.

    Nothing is shown with `--json`, nor when standard error carries the JSON log.
    """
    if output.as_json or owns_standard_error():
        yield Watch(work, output, None)
        return
    bar = _bar(output, work) if output.notes.is_terminal else None
    watch = Watch(work, output, bar)
    with subscribe(watch.listen):
        if bar is None:
            yield watch
            return
        with bar:
            bar.add_task(work.title, total=len(work.points) or None)
            yield watch


def _bar(output: CommandOutput, work: Work) -> Progress:
    text = TextColumn("{task.description}", markup=False)
    columns: list[ProgressColumn] = [SpinnerColumn(), text]
    if work.points:
        columns += [BarColumn(bar_width=20), MofNCompleteColumn()]
    return Progress(
        *columns,
        TimeElapsedColumn(),
        console=output.notes,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
