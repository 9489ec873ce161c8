"""References to secrets in source options: `{env:NAME}` and `{conn:ID:FIELD}`.

A declaration keeps the reference. Its value is taken only while a source is read, and is neither
stored nor shown.

`{env:NAME}` is an environment variable of the process that runs the driver. `{conn:ID:FIELD}` is a
field of an Airflow connection: `host`, `login`, `password`, `port`, `schema`, or a key of its
extras. The Airflow task hands it to the job in the environment variable `CAPSTAN_SECRETS`, a JSON
object of references without their braces and their values.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from capstan.core.config.models import Stream
from capstan.errors import InvalidRequestError, redaction

VARIABLE = "CAPSTAN_SECRETS"
"""The variable with the values of connections, as JSON."""

# Fields of a connection that are no secrets: without them, an error would name no broker.
_OPEN = frozenset({"host", "port", "schema"})
_MARKER = re.compile(r"\{(env|conn):([^{}]*)\}")
_NAMES = {
    "env": re.compile(r"[A-Za-z_]\w*", re.ASCII),
    "conn": re.compile(r"[^:{}\s][^:{}]*:[^{}\s]+"),
}
_FORMS = {"env": "{env:NAME}", "conn": "{conn:ID:FIELD}"}
_SECRET_KEY = re.compile(
    r"password|passwd|secret|token|sasl\.jaas\.config|access[._-]?key|account[._-]?key"
    r"|private[._-]?key|credential",
    re.IGNORECASE,
)
# Options whose names look like a secret's, but which say where or how to get one.
_HARMLESS_KEY = re.compile(r"(class|provider|endpoint|url|type|location|path|file)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference in an option."""

    key: str
    kind: str  # `env` or `conn`
    name: str  # the variable; or connection and field, with a colon between

    def __str__(self) -> str:
        return f"{{{self.kind}:{self.name}}}"

    @property
    def connection(self) -> tuple[str, str]:
        """The connection and the field of `{conn:ID:FIELD}`."""
        connection, _, field = self.name.partition(":")
        return connection, field

    @property
    def is_secret(self) -> bool:
        """Whether its value is to be masked; a part of an address is not."""
        return self.kind == "env" or self.connection[1] not in _OPEN


def references(options: Mapping[str, str]) -> Iterator[Reference]:
    """The references in a source's options."""
    for key, text in options.items():
        for kind, name in _MARKER.findall(text):
            if not _NAMES[kind].fullmatch(name):
                raise ValueError(f"{{{kind}:{name}}} is not written as {_FORMS[kind]}")
            yield Reference(key, kind, name)


def resolve(stream: Stream, environment: Mapping[str, str] | None = None) -> Stream:
    """The stream with the values of its references, which are masked from now on."""
    variables = os.environ if environment is None else environment
    try:
        wanted = list(references(stream.source.options))
    except ValueError as error:
        raise InvalidRequestError(
            "CAP-SECRET", f"stream {stream.name}: {error}", "correct it", stream=stream.name
        ) from None
    if not wanted:
        return stream
    given = _handed_over(variables)
    values: dict[str, str] = {}
    for reference in wanted:
        name = f"{reference.kind}:{reference.name}"
        value = variables.get(reference.name) if reference.kind == "env" else given.get(name)
        if not value:
            raise unresolved(stream.name, reference)
        if reference.is_secret:
            redaction.conceal(value)
        values[name] = value
    options = {
        key: _MARKER.sub(lambda found: values[f"{found[1]}:{found[2]}"], text)
        for key, text in stream.source.options.items()
    }
    return replace(stream, source=replace(stream.source, options=options))


def unresolved(stream: str, reference: Reference, problem: str = "") -> InvalidRequestError:
    """The error for a reference without a value; `problem` says more about it."""
    if reference.kind == "env":
        hint = f"set {reference.name} in the environment of the process that runs Spark's driver"
        problem = "which is not set"
    else:
        connection, field = reference.connection
        hint = (
            f"give connection {connection} of Airflow a value for {field}; the command line and "
            "jobs that are not started by Capstan's operators take {env:NAME}"
        )
    return InvalidRequestError(
        "CAP-SECRET",
        f"stream {stream}: source.options.{reference.key} needs {reference}, "
        f"{problem or 'which has no value here'}",
        hint,
        stream=stream,
        key=reference.key,
        name=reference.name,
    )


def literal_secrets(streams: Mapping[str, Stream]) -> list[str]:
    """The options that seem to have a secret as their value, with what to write instead."""
    return [
        f"streams.{name}.source.options.{key} seems to be a secret; "
        "write {env:NAME} or {conn:ID:FIELD} instead"
        for name, stream in streams.items()
        for key, text in stream.source.options.items()
        if _SECRET_KEY.search(key) and not _HARMLESS_KEY.search(key) and not _MARKER.search(text)
    ]


def _handed_over(environment: Mapping[str, str]) -> Mapping[str, str]:
    try:
        values = json.loads(environment.get(VARIABLE) or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        # Without the text: it has secrets.
        raise InvalidRequestError(
            "CAP-SECRET", f"{VARIABLE} is not a JSON object", "give references and their values"
        )
    return {name: str(value) for name, value in values.items()}
