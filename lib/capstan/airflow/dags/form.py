"""The forms of DAGs triggered by hand: sections, choices that exist, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Param

from capstan.airflow.dags.form_choices import labels_by_stream
from capstan.airflow.settings import Settings
from capstan.core.config import Mode

WHAT, INTO, HOW = "What to play", "Into which table", "How"
_TIME = (
    "a date (2013-03-01, from its midnight in UTC), a time (2013-03-01T05:00:00Z), or a number "
    "for streams whose times are epochs"
)


DIFFERENCES = (
    "Before anything is played, Spark compares: rows added, removed, changed in the table."
)


def replay_form(setting: Settings) -> dict[str, Param]:
    """The form of `capstan_replay`; its names are those of a replay's request."""
    return {**_what(setting), **_into(setting), **_how()}


def workers_field(labels: Mapping[str, Iterable[str]], section: str | None = None) -> Param:
    """The field that chooses workers, of one or several streams."""
    streams: dict[str, list[str]] = {}
    for stream, own in labels.items():
        for label in own:
            streams.setdefault(label, []).append(stream)
    several = len(labels) > 1
    shown = {name: f"{name} ({', '.join(own)})" if several else name
             for name, own in streams.items()}  # fmt: skip
    return list_field(
        "Workers",
        "Labels or numbers; all workers where none is chosen.",
        section,
        examples=list(streams),
        values_display=shown,
    )


def switch(title: str, description: str, section: str | None = HOW) -> Param:
    """A field that is on or off, off by default."""
    return Param(False, type="boolean", title=title, description_md=description, section=section)


def peers_field(section: str | None = None) -> Param:
    """The field that says how many replay workers there are."""
    return number_field(
        "Peers",
        "Replay workers; one per chosen worker, or as many as there were where a state goes on.",
        section,
        minimum=1,
    )


def _what(setting: Settings) -> dict[str, Param]:
    streams = setting.declarations.streams
    shown = {name: f"{name}: {stream.description}".rstrip(": ") for name, stream in streams.items()}
    return {
        "stream": Param(
            next(iter(streams)),
            type="string",
            enum=list(streams),
            values_display=shown,
            title="Stream",
            section=WHAT,
        ),
        "replay": _replay(setting),
        "workers": workers_field(labels_by_stream(setting), WHAT),
        "since": _text("Since", f"The first time that is played: {_TIME}. Empty: all.", WHAT),
        "until": _text(
            "Until",
            f"The first time that is played no more: {_TIME}. Empty: all complete times.",
            WHAT,
        ),
        "known_at": number_field(
            "Known at", "Only what was known at this epoch, of a stream with epochs.", WHAT
        ),
    }


def _replay(setting: Settings) -> Param:
    declared = setting.declarations.replays
    shown = {"None": "none"}
    for name, replay in declared.items():
        shown[name] = f"{name}: {replay.description}".rstrip(": ")
    return Param(
        None,
        type=["string", "null"],
        enum=[None, *declared],
        values_display=shown,
        title="Declared replay",
        description_md="Whose run it is: with its checks, its approval, and those who are told of "
        "failures. What is left empty is as declared, and nothing may be otherwise.",
        section=WHAT,
    )


def _into(setting: Settings) -> dict[str, Param]:
    declared = setting.declarations
    targets = {**declared.targets, **{each.target: each for each in declared.replays.values()}}
    names = declared.registry.names
    shown = {"None": "none: the records as they are"}
    for name in names:
        about = declared.registry.get(name).description
        shown[name] = f"{name}: {about}".rstrip(": ")
    return {
        "into": Param(
            type="string",
            title="Target",
            description_md="A table of the lake, a declared target, or the path of a Delta table.",
            section=INTO,
            minLength=1,
            examples=list(targets),
        ),
        "transform": Param(
            None,
            type=["string", "null"],
            enum=[None, *names],
            values_display=shown,
            title="Transform",
            section=INTO,
        ),
        "pipeline": Param(
            None,
            type=["string", "null"],
            enum=[None, *declared.pipelines],
            values_display={
                "None": "none",
                **{name: f"{name}: {where}" for name, where in declared.pipelines.items()},
            },
            title="Pipeline",
            description_md="In place of a transform.",
            section=INTO,
        ),
        "sink": _text("Sink", "Which sink of the pipeline, where it has several.", INTO),
        "mode": Param(
            str(Mode.REPLACE),
            type="string",
            enum=[str(mode) for mode in Mode],
            values_display={
                "replace": "replace what was played, nothing else",
                "append": "append",
                "merge": "merge on keys",
            },
            title="Mode",
            section=INTO,
        ),
        "keys": list_field(
            "Keys", "Columns that merge matches rows by; else those of the transform or sink.", INTO
        ),
        "adopt": switch(
            "Adopt", "Also replace rows of the range that no replay has put there.", INTO
        ),
    }


def _how() -> dict[str, Param]:
    return {
        "dry_run": switch("Dry run", "Stop after the plan: what would be read and written."),
        "diff": switch("Differences", DIFFERENCES),
        "approve": switch(
            "Approve",
            "A person decides between audit and publish, seeing what would change; always so for a "
            "table of which a declared replay asks for it.",
        ),
        "wait": switch("Wait", "Wait until the range is complete, where it is not."),
        "partial": switch("Partial", "Play what is complete of a range that is not."),
        "direct": switch("Direct", "Write to the table at once, audit it there: half the writing."),
        "as_of": number_field("As of", "A commit of the tape; the newest where it is empty.", HOW),
        "follow": _text(
            "Follow",
            "A name: play what became complete since the last run of that name. A pipeline goes on "
            "from its state, on as many replay workers as *Peers* says.",
            HOW,
        ),
        "peers": peers_field(HOW),
    }


def _text(title: str, description: str, section: str) -> Param:
    return Param(
        None, type=["string", "null"], title=title, description_md=description, section=section
    )


def number_field(title: str, description: str, section: str | None, minimum: int = 0) -> Param:
    """A field for a whole number, which may be empty."""
    return Param(
        None,
        type=["integer", "null"],
        minimum=minimum,
        title=title,
        description_md=description,
        section=section,
    )


def list_field(title: str, description: str, section: str | None, **choices: Any) -> Param:
    """A field for several texts, which may be empty."""
    return Param(
        None,
        type=["array", "null"],
        items={"type": "string"},
        title=title,
        description_md=description,
        section=section,
        **choices,
    )
