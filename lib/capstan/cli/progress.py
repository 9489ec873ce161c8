"""Progress on standard error, driven by the named points of the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

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
from capstan.telemetry.instrumentation import Facts, subscribe
from capstan.telemetry.structured_logging import owns_standard_error


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work whose progress is shown."""

    title: str
    points: tuple[str, ...] = ()  # that it will pass, when known; their count is the total


_REPLAY = ("verify", "claim", "intent", "staging", "audit", "publish", "coverage", "certificate")
_HELD = ("verify", "claim", "intent", "staging", "audit", "audited")
IMPORT = ("import.survey", "import.records", "import.workers", "import.events")
"""The points of an import of files, unless they are already on tape."""
ROLLBACK = ("rollback.publish", "rollback.coverage", "rollback.ledger")
"""The points of a rollback."""

# The step that a point completes, with its facts; points that are not here are too small to show.
_DONE: Mapping[str, str | Callable[[Facts], str]] = {
    "verify.events": "{read:,} events verified",
    "verify.deep": "records compared with their events",
    "replay.verify": "recordings of {workers} workers are valid",
    "replay.changed": (
        "{into}: {change} has changed published rows; "
        "`capstan replay` over their times restores them"
    ),
    "replay.claim": "{run}, attempt {attempt}: claimed",
    "replay.fence": "earlier attempts are fenced",
    "replay.intent": "{records:,} records to replay",
    "replay.staging": "staged",
    "replay.audit": "{cells:,} cells audited",
    "replay.audited": "waiting to be published",
    "replay.approved": "approved",
    "replay.rejected": "rejected",
    "audit.findings": "{findings:,} findings recorded",
    "replay.publish": "published as version {version}",
    "replay.coverage": "coverage written",
    "replay.certificate": "certificate written",
    "rollback.publish": "rolled back in version {version}",
    "rollback.coverage": "coverage written",
    "rollback.ledger": "ledger written",
    "maintain.compacted": "{table}: {of:,} files became {files:,}",
    "maintain.vacuumed": "{table}: {files:,} files deleted",
    "maintain.staging": "{cleared} staged outputs deleted",
    "retire.begun": "{records:,} records to retire",
    "retire.deleted": "records deleted",
    "retire.done": "ledger written",
    "backfill.run": lambda facts: f"run {facts['number']} of {facts['of']} {_ended(facts)}",
    "backfill.waits": "waiting {seconds:,} s for the rate",
    "capture.close": "closed",
    "idle.events": "{workers} idle workers advanced by the clock",
    "rescale.events": "{workers} new workers opened",
    "put-back.records": "records put on tape",
    "put-back.events": "{records:,} records put back",
    "fix.rows": "{records:,} records repaired",
    "fix.records": "records put on tape",
    "fix.events": "{records:,} records put back",
    "drop.rows": "{records:,} records chosen",
    "drop.events": "records dropped or opened again",
    "source.compared": "{batches:,} batches compared with the source",
    "tape.upgrade": "{stream} upgraded to format {format}",
    "import.survey": "{files} files, {events:,} events",
    "import.records": "records written",
    "import.events": "events written",
    "export.files": "{files} files written",
    "export.topics": "{events:,} events sent",
    "topics.records": "records written",
    "topics.events": "events written",
    "recapture.records": "records written",
    "recapture.events": "commit {commit}: events written",
    "state.rescaled": "state distributed over {peers} replay workers",
    "listen.ready": lambda facts: f"listening on {_ports(facts)}; Ctrl-C stops it",
    "listen.connected": "worker {worker} connected from {peer}",
    "listen.disconnected": "worker {worker} disconnected",
    "listen.events": "commit {commit}: {events:,} events",
    "serve.sent": "{peer}: {events:,} events sent",
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


def _ended(facts: Facts) -> str:
    return "failed" if facts.get("failed") else "is done"


def _ports(facts: Facts) -> str:
    ports = facts.get("ports")
    numbers = list(ports) if isinstance(ports, tuple) else []
    adjacent = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    if len(numbers) > 1 and adjacent:
        return f"ports {numbers[0]} to {numbers[-1]}"
    return "port " + ", ".join(map(str, numbers))


def replay_work(title: str, *, hold: bool = False, runs: int = 1) -> Work:
    """The work of replays; the total is exact unless a run is already published."""
    steps = _HELD if hold else _REPLAY
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

    def listen(self, point: str, facts: Facts) -> None:
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
        done = _DONE.get(point)
        # A fact that is missing must not end the work whose progress is shown.
        if isinstance(done, str):
            return done.format_map(defaultdict(int, facts))
        return done and done(facts)


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
