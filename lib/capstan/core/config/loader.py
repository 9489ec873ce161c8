"""The declaration file, read and checked as a whole."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from capstan.core.config.cross_checks import check_replay
from capstan.core.config.fields import reference
from capstan.core.config.models import Replay, Stream, Target
from capstan.core.config.names import NAME_RULE, check_name, did_you_mean, one_of
from capstan.core.config.registry import Registry, transforms
from capstan.core.config.row_checks import twice
from capstan.core.config.transforms import Transform
from capstan.core.config.validation import read_declared
from capstan.core.config.yaml_document import Document, Place, read_document
from capstan.errors import InvalidRequestError

Model = TypeVar("Model")

_KINDS = {
    "streams": "stream",
    "transforms": "transform",
    "pipelines": "pipeline",
    "targets": "table",
    "replays": "replay",
}
_SECTIONS = tuple(_KINDS)
_BRACES = re.compile(r"\{([^{}]*)\}")
_VARIABLE = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class Mistake:
    """A declaration that is wrong.

    Attributes:
        place: Its section and name, as far as it has them.
        error: What is wrong, with file, line and key.
    """

    place: Place
    error: InvalidRequestError


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """What one declaration file declares, by name.

    Attributes:
        path: The file.
        streams: Streams to capture.
        transforms: Transforms of this file; `registry` has those of Python too.
        targets: Targets whose columns are declared.
        replays: Replays with a name.
        pipelines: Where pipelines are registered, as `package.module:function`; nothing is
            imported to read them.
        mistakes: What is wrong in the file, of one that was read in part: each leaves out the
            declaration that it is in, and nothing else.
    """

    path: Path
    streams: Mapping[str, Stream]
    transforms: Mapping[str, Transform]
    targets: Mapping[str, Target]
    replays: Mapping[str, Replay]
    pipelines: Mapping[str, str] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    @property
    def registry(self) -> Registry:
        """All transforms that a request may name."""
        return transforms(self.transforms)

    def stream(self, name: str) -> Stream:
        """The stream declared as `name`.

        Raises:
            InvalidRequestError: `CAP-STREAM` when there is none; the hint lists those there are.
        """
        return self._named("stream", "CAP-STREAM", self.streams, name)

    def replay(self, name: str) -> Replay:
        """The replay declared as `name`.

        Raises:
            InvalidRequestError: `CAP-REPLAY` when there is none; the hint lists those there are.
        """
        return self._named("replay", "CAP-REPLAY", self.replays, name)

    def require_read(self) -> None:
        """Check that the file could be read at all.

        Raises:
            InvalidRequestError: `CAP-DECLARE`.
        """
        for mistake in self.mistakes:
            if not mistake.place:
                raise mistake.error

    def require_sound(self, section: str, name: str | None) -> None:
        """Check that a declaration is not one that was left out as it is wrong.

        Args:
            section: `streams`, `transforms`, `pipelines`, `targets` or `replays`.
            name: The name; None is any of the section.

        Raises:
            InvalidRequestError: `CAP-DECLARE`, what is wrong with it.
        """
        for mistake in self.mistakes:
            wrong = mistake.place[:2]
            if wrong in ((), (section,), (section, name)) or (name is None and wrong[0] == section):
                raise mistake.error

    def _named(self, kind: str, code: str, known: Mapping[str, Model], name: str) -> Model:
        found = known.get(name)
        if found is not None:
            return found
        self.require_sound(f"{kind}s", name)
        raise InvalidRequestError(
            code,
            f"no {kind} is declared as {name[:80]!r}{did_you_mean(name, known)}",
            f"{self.path} declares: {one_of(sorted(known))}",
            name=name,
            known=sorted(known),
        )


def default_path() -> Path:
    """The declaration file to use when none is named.

    `CAPSTAN_STREAMS` if it is set; else `dags/streams.yaml` below the working folder if it is
    there; else that of the project this module lies in.
    """
    named = os.environ.get("CAPSTAN_STREAMS")
    if named:
        return Path(named)
    here = Path("dags") / "streams.yaml"
    if here.is_file():
        return here
    project = Path(__file__).resolve().parents[4] / here
    return project if project.is_file() else here


def load_config(path: Path, *, lake: str) -> ProjectConfig:
    """Read a declaration file, and check it whole.

    Args:
        path: The file; messages name it as given here.
        lake: What `{lake}` stands for in paths and in options of sources.

    Raises:
        InvalidRequestError: `CAP-DECLARE` with file, line and key path, and what is allowed there.
    """
    declared = load_sound(path, lake=lake)
    for mistake in declared.mistakes:
        raise mistake.error
    return declared


def load_sound(path: Path, *, lake: str) -> ProjectConfig:
    """Read what is right in a declaration file, and tell what is not.

    Args:
        path: The file; messages name it as given here.
        lake: What `{lake}` stands for in paths and in options of sources.
    """
    reading = _Reading(path)
    sections = reading.sections()
    reading.fill_in(sections, lake)
    declared = ProjectConfig(
        path,
        reading.models("streams", sections, Stream),
        reading.models("transforms", sections, Transform),
        reading.models("targets", sections, Target),
        reading.models("replays", sections, Replay),
        reading.references(sections["pipelines"]),
    )
    replays = dict(declared.replays)
    for name, replay in declared.replays.items():
        with reading.part("replays", name, among=replays):
            _check_replay(reading.document, name, replay, declared)
    return replace(declared, replays=MappingProxyType(replays), mistakes=tuple(reading.mistakes))


class _Reading:
    """A declaration file as it is read: what is wrong is put aside, and left out."""

    def __init__(self, path: Path) -> None:
        self.mistakes: list[Mistake] = []
        self.document = Document(path, {}, {})
        with self.part():
            self.document = read_document(path)

    @contextmanager
    def part(self, *place: str, among: dict[str, Any] | None = None) -> Iterator[None]:
        """Read a part of the file; where that is wrong, it is taken from `among` by its name."""
        try:
            yield
        except InvalidRequestError as error:
            self.mistakes.append(Mistake(place, error))
            if among is not None:
                among.pop(place[-1], None)

    def sections(self) -> dict[str, dict[str, object]]:
        """The sections, each a mapping of names; those that are not there are empty."""
        assert isinstance(self.document.data, dict)
        sections: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
        for key, content in self.document.data.items():
            with self.part(key):
                if key not in _SECTIONS:
                    guess = did_you_mean(key, _SECTIONS)
                    problem = f"unknown key{guess}; allowed here: {one_of(_SECTIONS)}"
                    raise self.document.error((key,), problem)
                if not isinstance(content or {}, dict):
                    problem = "must be a mapping of names to declarations"
                    raise self.document.error((key,), problem)
                sections[key] = content or {}
        return sections

    def models(
        self, section: str, sections: Mapping[str, Mapping[str, object]], model: type[Model]
    ) -> Mapping[str, Model]:
        """The declarations of a section, by name."""
        found: dict[str, Model] = {}
        for name, fields in sections[section].items():
            with self.part(section, name):
                found[name] = _model(self.document, (section, name), fields, model)
        return MappingProxyType(found)

    def references(self, section: Mapping[str, object]) -> Mapping[str, str]:
        """The pipelines: each name stands for `package.module:function`."""
        found: dict[str, str] = {}
        for name, value in section.items():
            with self.part("pipelines", name):
                found[name] = _reference(self.document, name, value)
        return MappingProxyType(found)

    def fill_in(self, sections: dict[str, dict[str, object]], lake: str) -> None:
        """Replace `{lake}` where it may stand: in paths, and in options of sources."""
        for holder, key, place in list(_with_variables(sections)):
            value = holder.get(key)
            if isinstance(value, str):
                # Options may hold JSON, whose braces are no variables.
                braces = _VARIABLE if "options" in place else _BRACES
                section, name = map(str, place[:2])
                with self.part(section, name, among=sections[section]):
                    holder[key] = _filled(self.document, place, value, braces, lake)


def _model(document: Document, place: tuple[str, str], fields: object, model: type[Model]) -> Model:
    name = place[-1]
    _check_name(document, place, name)
    data: object = {} if fields is None else fields
    if isinstance(data, dict):
        if "name" in data:
            problem = "unknown key; the name is the key above it"
            raise document.error((*place, "name"), problem)
        data = {**data, "name": name}
    return read_declared(model, document, place, data)


def _reference(document: Document, name: str, value: object) -> str:
    place = ("pipelines", name)
    _check_name(document, place, name)
    if not isinstance(value, str):
        raise document.error(place, "must be text: package.module:function")
    try:
        return reference(value)
    except ValueError as error:
        raise document.error(place, str(error)) from None


def _check_name(document: Document, place: tuple[str, str], name: str) -> None:
    try:
        check_name(_KINDS[place[0]], name)
    except InvalidRequestError as error:
        raise document.error(place, error.message, f"a name is {NAME_RULE}") from None


def _check_replay(document: Document, name: str, replay: Replay, declared: ProjectConfig) -> None:
    problem = check_replay(replay, declared.streams, declared.registry, declared.pipelines)
    if problem is not None:
        field, what = problem
        raise document.error(("replays", name, field), what, "see the declarations it names")
    target = declared.targets.get(replay.target)
    name_twice = twice((*(target.checks if target else ()), *replay.checks))
    if name_twice is not None:
        said = f"{name_twice!r} is a check of target {replay.target} as well"
        raise document.error(("replays", name, "checks"), said, "give one another name")


def _filled(
    document: Document, place: Place, value: str, braces: re.Pattern[str], lake: str
) -> str:
    for name in braces.findall(value):
        if name != "lake":
            problem = f"{{{name}}} is not a variable{did_you_mean(name, ['lake'])}"
            raise document.error(place, problem, "the only variable is {lake}")
    rest = value.replace("{lake}", "")
    if braces is _BRACES and ("{" in rest or "}" in rest):
        raise document.error(place, "has a brace without its other", "the only variable is {lake}")
    return value.replace("{lake}", lake)


def _with_variables(
    sections: dict[str, dict[str, object]],
) -> Iterator[tuple[dict[str, object], str, Place]]:
    for name, target in sections["targets"].items():
        if isinstance(target, dict):
            yield target, "path", ("targets", name, "path")
    for name, stream in sections["streams"].items():
        source = stream.get("source") if isinstance(stream, dict) else None
        if isinstance(source, dict):
            yield source, "path", ("streams", name, "source", "path")
            options = source.get("options")
            if isinstance(options, dict):
                for key in options:
                    yield options, key, ("streams", name, "source", "options", key)
