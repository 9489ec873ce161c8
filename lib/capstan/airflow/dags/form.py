"""Trigger forms of DAGs: sections, fields and choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Param

from capstan.airflow.settings import Settings
from capstan.airflow.worker_labels import labels_by_stream
from capstan.core.config import STREAMS_PATTERN, Mode

INPUT, OUTPUT, OPTIONS = "What to replay", "Into which table", "How"
_TIME = (
    "a date (2013-03-01: its midnight in UTC), a time (2013-03-01T05:00:00Z), or a number for "
    "streams whose times are epochs"
)

DIFFERENCES = "Show in the plan which rows the replay would add, remove and change. Starts Spark."


def replay_form(setting: Settings) -> dict[str, Param]:
    """The form of `capstan_replay`; its fields have the names of a replay request's fields."""
    return {**_input_fields(setting), **_output_fields(setting), **_option_fields()}


def filled(params: Mapping[str, object]) -> dict[str, object]:
    """The fields of a form that are filled in: a blank one is not given."""
    return {
        name: value
        for name, value in params.items()
        if value not in (None, "", [], ()) and not (isinstance(value, str) and not value.strip())
    }


def workers_field(labels: Mapping[str, Iterable[str]], section: str | None = None) -> Param:
    """The field that chooses workers of one or several streams."""
    streams: dict[str, list[str]] = {}
    for stream, names in labels.items():
        for label in names:
            streams.setdefault(label, []).append(stream)
    several = len(labels) > 1
    shown = {label: f"{label} ({', '.join(names)})" if several else label
             for label, names in streams.items()}  # fmt: skip
    return list_field(
        "Workers",
        "Labels or numbers. Empty: all workers.",
        section,
        examples=list(streams),
        values_display=shown,
    )


def switch(title: str, description: str, section: str | None = OPTIONS) -> Param:
    """A switch, off by default."""
    return Param(False, type="boolean", title=title, description_md=description, section=section)


def peers_field(section: str | None = None) -> Param:
    """The field for the number of replay workers."""
    return number_field(
        "Peers",
        "Number of replay workers. Empty: one per chosen worker, or as before if state continues.",
        section,
        minimum=1,
    )


def _input_fields(setting: Settings) -> dict[str, Param]:
    streams = setting.declarations.streams
    shown = {name: f"{name}: {stream.description}".rstrip(": ") for name, stream in streams.items()}
    return {
        "stream": Param(
            next(iter(streams)),
            type="string",
            enum=list(streams),
            values_display=shown,
            title="Stream",
            section=INPUT,
        ),
        "streams": _streams(),
        "replay": _replay(setting),
        "workers": workers_field(labels_by_stream(setting), INPUT),
        "since": _text("Since", f"First time to replay: {_TIME}. Empty: from the start.", INPUT),
        "until": _text(
            "Until",
            f"First time after the range: {_TIME}. Empty: all complete times.",
            INPUT,
        ),
        "known_at": number_field(
            "Known at", "Replay what was known at this epoch; for times in `epoch, event`.", INPUT
        ),
    }


def _streams() -> Param:
    return Param(
        None,
        type=["string", "null"],
        pattern=STREAMS_PATTERN,
        title="Streams",
        description_md="For a *Pipeline* that reads several streams: each of its sources with its "
        "stream, as in `orders=orders_eu, payments=payments`; `orders=orders_eu+orders_us` reads "
        "two as one. *Stream* does not count then. Empty: the one in *Stream*.",
        section=INPUT,
    )


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
        description_md="Run as this declared replay: its checks, approval and notifications "
        "apply. Empty fields take the declared values; others must match them.",
        section=INPUT,
    )


def _output_fields(setting: Settings) -> dict[str, Param]:
    declared = setting.declarations
    targets = {
        **declared.targets,
        **{replay.target: replay for replay in declared.replays.values()},
    }
    names = declared.registry.names
    shown = {"None": "none: copy the records"}
    for name in names:
        about = declared.registry.get(name).description
        shown[name] = f"{name}: {about}".rstrip(": ")
    return {
        "into": Param(
            type="string",
            title="Target",
            description_md="A table of the lake, a declared target, the path of a Delta table, or "
            "its name in a catalog, such as `main.shop.orders`.",
            section=OUTPUT,
            minLength=1,
            examples=list(targets),
        ),
        "transform": Param(
            None,
            type=["string", "null"],
            enum=[None, *names],
            values_display=shown,
            title="Transform",
            section=OUTPUT,
        ),
        "pipeline": Param(
            None,
            type=["string", "null"],
            enum=[None, *declared.pipelines],
            values_display={
                "None": "none",
                **{name: f"{name}: {path}" for name, path in declared.pipelines.items()},
            },
            title="Pipeline",
            description_md="Instead of a transform.",
            section=OUTPUT,
        ),
        "sink": _text("Sink", "The sink of a pipeline that has several.", OUTPUT),
        "mode": Param(
            str(Mode.REPLACE),
            type="string",
            enum=[str(mode) for mode in Mode],
            values_display={
                "replace": "replace the replayed workers and times",
                "append": "append",
                "merge": "merge on keys",
            },
            title="Mode",
            section=OUTPUT,
        ),
        "keys": list_field(
            "Keys", "Key columns of merge. Empty: those of the transform or sink.", OUTPUT
        ),
        "adopt": switch("Adopt", "Also replace rows of the range that no replay wrote.", OUTPUT),
    }


def _option_fields() -> dict[str, Param]:
    return {
        "dry_run": switch(
            "Dry run", "Stop after the plan, which shows what would be read and written."
        ),
        "diff": switch("Differences", DIFFERENCES),
        "approve": switch(
            "Approve",
            "After the audit, a person sees what would change and decides whether to publish. "
            "Always on for a table whose declared replay asks for approval.",
        ),
        "wait": switch("Wait", "Wait until the range is complete."),
        "partial": switch("Partial", "Replay the complete part of an incomplete range."),
        "direct": switch(
            "Direct", "Write to the table without staging; audit it there. Halves the writing."
        ),
        "as_of": number_field("As of", "A commit of the tape. Empty: the newest.", OPTIONS),
        "follow": _text(
            "Follow",
            "A name: replay what became complete since the last run of that name. A pipeline "
            "continues from its state, on the number of replay workers in *Peers*.",
            OPTIONS,
        ),
        "peers": peers_field(OPTIONS),
    }


def _text(title: str, description: str, section: str) -> Param:
    return Param(
        None,
        type=["string", "null"],
        minLength=1,
        title=title,
        description_md=description,
        section=section,
    )


def number_field(title: str, description: str, section: str | None, minimum: int = 0) -> Param:
    """A field for an integer, which may be empty."""
    return Param(
        None,
        type=["integer", "null"],
        minimum=minimum,
        title=title,
        description_md=description,
        section=section,
    )


def list_field(title: str, description: str, section: str | None, **choices: Any) -> Param:
    """A field for a list of strings, which may be empty."""
    return Param(
        None,
        type=["array", "null"],
        minItems=1,
        items={"type": "string"},
        title=title,
        description_md=description,
        section=section,
        **choices,
    )
