"""What is being done, on standard error, driven by the named points of the work."""

from __future__ import annotations

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

from capstan.cli.output import Output
from capstan.instrumentation import subscribe
from capstan.structured_logging import owns_standard_error

Facts = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Work:
    """What a command is about to do.

    Attributes:
        title: What it is called.
        points: The named points that it passes, when they are known: the total of its progress.
    """

    title: str
    points: tuple[str, ...] = ()


_REPLAY = ("verify", "claim", "intent", "staging", "audit", "publish", "coverage", "certificate")
_DIRECT = ("verify", "claim", "intent", "publish", "audit", "coverage", "certificate")
_HELD = ("verify", "claim", "intent", "staging", "audit", "audited")
_IMPORT = ("import.survey", "import.records", "import.workers", "import.events")
_ROLLBACK = ("rollback.publish", "rollback.coverage", "rollback.ledger")

# What was done when a point is reached; points that are not here are too small to be shown.
_DONE: Mapping[str, Callable[[Facts], str]] = {
    "verify.events": lambda facts: f"{facts.get('read', 0):,} events verified",
    "verify.deep": lambda _: "records compared with their events",
    "replay.verify": lambda facts: f"recordings of {facts.get('workers')} workers are sound",
    "replay.changed": lambda facts: (
        f"{facts.get('into')}: {facts.get('change')} has changed rows that stand; "
        "`capstan replay` over their times mends them"
    ),
    "replay.claim": lambda facts: f"{facts.get('run')}, attempt {facts.get('attempt')}: claimed",
    "replay.fence": lambda _: "earlier attempts are shut out",
    "replay.intent": lambda facts: f"{facts.get('records', 0):,} records to play",
    "replay.staging": lambda _: "staged",
    "replay.audit": lambda facts: f"{facts.get('cells', 0):,} cells audited",
    "replay.audited": lambda _: "waits to be published",
    "replay.approved": lambda _: "approved",
    "replay.rejected": lambda _: "rejected",
    "audit.findings": lambda facts: f"{facts.get('findings', 0):,} findings written down",
    "replay.publish": lambda facts: f"published as version {facts.get('version')}",
    "replay.coverage": lambda _: "coverage written",
    "replay.certificate": lambda _: "certificate written",
    "rollback.publish": lambda facts: f"taken back in version {facts.get('version')}",
    "rollback.coverage": lambda _: "coverage written",
    "rollback.ledger": lambda _: "ledger written",
    "maintain.compacted": lambda facts: f"{facts.get('table')}: {_compacted(facts)}",
    "maintain.vacuumed": lambda facts: f"{facts.get('table')}: {facts.get('files'):,} files gone",
    "maintain.staging": lambda facts: f"{facts.get('cleared')} staged outputs cleared away",
    "retire.begun": lambda facts: f"{facts.get('records', 0):,} records to retire",
    "retire.deleted": lambda _: "records deleted",
    "retire.done": lambda _: "written down",
    "backfill.run": lambda facts: f"run {facts.get('number')} of {facts.get('of')} {_ended(facts)}",
    "capture.close": lambda _: "closed",
    "idle.events": lambda facts: f"the clock has moved {facts.get('workers')} idle workers",
    "rescale.events": lambda facts: f"{facts.get('workers')} new workers are open",
    "put-back.records": lambda _: "records put on tape",
    "put-back.events": lambda facts: f"{facts.get('records', 0):,} records put back",
    "source.compared": lambda facts: f"{facts.get('batches', 0):,} batches held against the source",
    "tape.upgrade": lambda facts: f"{facts.get('stream')} brought to format {facts.get('format')}",
    "import.survey": lambda facts: f"{facts.get('files')} files, {facts.get('events'):,} events",
    "import.records": lambda _: "records written",
    "import.events": lambda _: "events written",
    "export.files": lambda facts: f"{facts.get('files')} files written",
    "export.topics": lambda facts: f"{facts.get('events', 0):,} events sent",
    "topics.records": lambda _: "records written",
    "topics.events": lambda _: "events written",
    "recapture.records": lambda _: "records written",
    "recapture.events": lambda facts: f"commit {facts.get('commit')}: events written",
    "state.rescaled": lambda facts: f"state dealt to {facts.get('peers')} replay workers",
    "listen.ready": lambda facts: f"listening on {_ports(facts)}; Ctrl-C ends it",
    "listen.connected": lambda facts: f"worker {facts.get('worker')} is {facts.get('peer')}",
    "listen.disconnected": lambda facts: f"worker {facts.get('worker')} has gone",
    "listen.events": lambda facts: f"commit {facts.get('commit')}: {facts.get('events'):,} events",
    "serve.sent": lambda facts: f"{facts.get('peer')}: {facts.get('events', 0):,} events sent",
}
# What is done next, for the line that moves.
_NEXT = {
    "verify.events": "remembering",
    "replay.verify": "planning",
    "replay.claim": "reading the tape",
    "replay.intent": "playing",
    "replay.staging": "auditing",
    "replay.audit": "publishing",
    "replay.publish": "writing down",
    "capture.workers": "writing records",
    "capture.records": "writing late rows",
    "capture.late": "fingerprinting",
    "capture.events": "reading what came next",
}


def _compacted(facts: Facts) -> str:
    return f"{facts.get('of'):,} files became {facts.get('files'):,}"


def _ended(facts: Facts) -> str:
    return "has failed" if facts.get("failed") else "is done"


def _ports(facts: Facts) -> str:
    ports = facts.get("ports")
    numbers = list(ports) if isinstance(ports, tuple) else []
    adjacent = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    if len(numbers) > 1 and adjacent:
        return f"ports {numbers[0]} to {numbers[-1]}"
    return "port " + ", ".join(map(str, numbers))


def replay_work(title: str, *, direct: bool = False, hold: bool = False, runs: int = 1) -> Work:
    """The work of replays; a total that holds unless an earlier run stands."""
    steps = _DIRECT if direct else _HELD if hold else _REPLAY
    return Work(title, tuple(f"replay.{step}" for step in steps) * runs)


def import_work(title: str) -> Work:
    """The work of an import of files; a total that holds unless they are on tape already."""
    return Work(title, _IMPORT)


def rollback_work(title: str) -> Work:
    """The work of a rollback."""
    return Work(title, _ROLLBACK)


@dataclass(slots=True)
class _Tally:
    """Batches and rows of a capture so far; nobody knows how many will come."""

    batches: int = 0
    rows: int = 0
    late: int = 0

    def add(self, facts: Facts) -> None:
        late = facts.get("late")
        self.batches += 1
        self.rows += int(str(facts.get("fed", 0)))
        self.late += sum(late.values()) if isinstance(late, Mapping) else 0

    def __str__(self) -> str:
        batches = f"{self.batches} micro-batch" + ("" if self.batches == 1 else "es")
        return f"{self.rows:,} rows in {batches}, {self.late:,} late"


@dataclass(slots=True)
class Watch:
    """Shows one piece of work.

    Attributes:
        work: What is done.
        output: Where to show it.
        bar: The line that moves; None without a terminal.
    """

    work: Work
    output: Output
    bar: Progress | None
    tally: _Tally = field(default_factory=_Tally)

    def listen(self, point: str, facts: dict[str, object]) -> None:
        """Take note of a point that was reached."""
        done = self._done(point, facts)
        if self.bar is None:
            if done:
                self.output.note(f"{self.work.title}: {done}")
            return
        after = _NEXT.get(point, done or "")
        text = f"{self.tally}, {after}" if point.startswith("capture.") else after
        self.now(text, advance=point in self.work.points)

    def now(self, text: str, *, advance: bool = False) -> None:
        """Say what is being done."""
        if self.bar is not None and self.bar.task_ids:
            shown = f"{self.work.title}: {text}" if text else self.work.title
            self.bar.update(self.bar.task_ids[0], description=shown, advance=int(advance))

    def _done(self, point: str, facts: Facts) -> str | None:
        if point == "capture.events":
            self.tally.add(facts)
            return f"{self.tally} so far"
        words = _DONE.get(point)
        return None if words is None else words(facts)


@contextmanager
def watching(output: Output, work: Work) -> Iterator[Watch]:
    """Show the work inside the `with` block: a line that moves, or a line per finished step.

    With JSON nothing is shown, nor where standard error has the log's JSON.
    """
    if output.to_json or owns_standard_error():
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


def _bar(output: Output, work: Work) -> Progress:
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
