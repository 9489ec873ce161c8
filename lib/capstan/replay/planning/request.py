"""What a replay is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from capstan.core.config import Mode, check_column, check_name, check_target
from capstan.core.parallelism import check_parallelism
from capstan.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Request:
    """A replay as a person, a form or a schedule asks for it.

    Attributes:
        stream: The stream to play.
        into: The target: a table of the lake, a declared target, or a Delta path.
        workers: Labels or numbers; None for all.
        since: First time played, as the command line writes it; None from the start.
        until: First time no longer played; None for all complete times.
        known_at: The last epoch played, of a stream whose times have one: what was known then.
        as_of: The cut; None for the newest.
        peers: Replay workers; None for one per chosen worker.
        transform: A registered transform; None plays records as they are.
        pipeline: A registered pipeline, where there is no transform.
        sink: The sink of the pipeline whose rows are played; None where it has but one.
        mode: How the target is changed.
        keys: Columns that `merge` matches rows by; those of the transform or sink when empty.
        follow: A cursor's name: play only what became complete since its last run.
        partial: Play what is complete of a range that is not.
        direct: Write to the target at once, audit it there, take it back if the audit fails.
        adopt: Replace rows of the range that no replay has put there.
        hold: Stop after the audit; `capstan publish` goes on.
        approve: Stop after the audit, saying what publishing would change; a person decides.
        replay: The declared replay that this is a run of, whose checks it has to meet.
    """

    stream: str
    into: str
    workers: tuple[str, ...] | None = None
    since: str | None = None
    until: str | None = None
    known_at: int | None = None
    as_of: int | None = None
    peers: int | None = None
    transform: str | None = None
    pipeline: str | None = None
    sink: str | None = None
    mode: Mode = Mode.REPLACE
    keys: tuple[str, ...] = ()
    follow: str | None = None
    partial: bool = False
    direct: bool = False
    adopt: bool = False
    hold: bool = False
    approve: bool = False
    replay: str | None = None

    @property
    def held(self) -> bool:
        """Whether it stops after the audit."""
        return self.hold or self.approve

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        check_target(self.into)
        for key in self.keys:
            check_column(key)
        if self.follow is not None:
            check_name("follow", self.follow)
            self._check_follow()
        if self.workers is not None and not self.workers:
            raise InvalidRequestError(
                "CAP-WORKERS", "no workers are chosen", "name some, or leave it out"
            )
        if self.peers is not None:
            check_parallelism(self.peers, "replay workers")
        if self.replay is not None:
            check_name("replay", self.replay)
        self._check_computation()
        if self.direct and (self.mode is not Mode.REPLACE or self.held):
            raise InvalidRequestError(
                "CAP-DIRECT",
                "--direct goes with mode replace and publishes at once",
                "leave out --direct to stage, audit, then publish",
            )

    def _check_computation(self) -> None:
        if self.pipeline is not None:
            check_name("pipeline", self.pipeline)
        problem = None
        if self.pipeline is not None and self.transform is not None:
            problem = "a replay has a transform or a pipeline, and not both"
        elif self.sink is not None and self.pipeline is None:
            problem = "--sink goes with --pipeline"
        if problem is not None:
            raise InvalidRequestError("CAP-PIPELINE", problem, "leave out one of the two")

    def _check_follow(self) -> None:
        bounds = (self.until, self.known_at, self.as_of)
        if any(bound is not None for bound in bounds) or self.partial:
            raise InvalidRequestError(
                "CAP-FOLLOW",
                "a followed replay plays whatever became complete: it takes no --until, "
                "--known-at, --as-of or --partial",
                "leave them out, or replay without --follow",
            )

    def to_json(self) -> dict[str, object]:
        """The request as JSON, for the ledger."""
        return {**asdict(self), "mode": str(self.mode)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Request:
        """The request of `to_json`."""
        fields = dict(value)
        workers, keys = fields.pop("workers"), fields.pop("keys")
        mode = Mode(str(fields.pop("mode")))
        return cls(
            **fields,  # type: ignore[arg-type]
            mode=mode,
            workers=tuple(workers) if isinstance(workers, list) else None,
            keys=tuple(keys) if isinstance(keys, list) else (),
        )
