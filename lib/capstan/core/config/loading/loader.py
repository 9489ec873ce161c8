"""Loader of the declaration file, with checks across declarations."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from capstan.core.config.fields import reference
from capstan.core.config.loading.cross_checks import check_replay
from capstan.core.config.loading.registry import Registry, transforms
from capstan.core.config.loading.secret_references import references
from capstan.core.config.loading.validation import read_declared
from capstan.core.config.loading.yaml_document import Document, Place, read_document
from capstan.core.config.models import Stream, Target
from capstan.core.config.names import check_name, check_root, did_you_mean, one_of
from capstan.core.config.replays import Replay
from capstan.core.config.row_checks import duplicate_name
from capstan.core.config.transforms import Transform
from capstan.core.environment import config_file
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
ROOTS = "roots"
"""The key among the targets that names no target if it is a list: where forms may name them."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_VARIABLE = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class Mistake:
    """An invalid declaration: its section and name, as far as known, and the error with line."""

    place: Place
    error: InvalidRequestError


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The declarations of one file, by name.

    Attributes:
        transforms: Transforms of this file; `registry` also has those registered in Python.
        pipelines: References to pipelines as `package.module:function`; loading the file does not
            import them.
        roots: Folders and URIs below which a form may name targets; the lake if it is empty.
        mistakes: Errors of a file that was loaded in part. Each leaves out only the declaration it
            is in.
    """

    path: Path
    streams: Mapping[str, Stream]
    transforms: Mapping[str, Transform]
    targets: Mapping[str, Target]
    replays: Mapping[str, Replay]
    pipelines: Mapping[str, str] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @property
    def modules(self) -> tuple[Path, ...]:
        """Python files and packages beside the file that its declarations name, sorted.

        They are imported from there, on executors too; other modules have to be installed.
        """
        functions = [transform.function for transform in self.transforms.values()]
        functions += [stream.source.function for stream in self.streams.values()]
        references = [*self.pipelines.values(), *filter(None, functions)]
        folder = self.path.absolute().parent
        names = {reference.partition(":")[0].partition(".")[0] for reference in references}
        places = [place for name in names for place in (folder / f"{name}.py", folder / name)]
        return tuple(sorted(place for place in places if place.exists()))

    @property
    def registry(self) -> Registry:
        """All transforms that a request can name."""
        return transforms(self.transforms)

    def stream(self, name: str) -> Stream:
        """The stream with this name."""
        return self._lookup("stream", "CAP-STREAM", self.streams, name)

    def replay(self, name: str) -> Replay:
        """The replay with this name."""
        return self._lookup("replay", "CAP-REPLAY", self.replays, name)

    def require_read(self) -> None:
        """Check that the file could be parsed."""
        for mistake in self.mistakes:
            if not mistake.place:
                raise mistake.error

    def require_sound(self, section: str, name: str | None) -> None:
        """Check that a declaration was not left out as invalid; None is any name of the section."""
        for mistake in self.mistakes:
            place = mistake.place[:2]
            if place in ((), (section,), (section, name)) or (name is None and place[0] == section):
                raise mistake.error

    def _lookup(self, kind: str, code: str, known: Mapping[str, Model], name: str) -> Model:
        if name in known:
            return known[name]
        self.require_sound(f"{kind}s", name)
        raise InvalidRequestError(
            code,
            f"no {kind} is declared as {name[:80]!r}{did_you_mean(name, known)}",
            f"{self.path} declares: {one_of(sorted(known))}",
            name=name,
            known=sorted(known),
        )


def default_path() -> Path:
    """`CAPSTAN_CONFIG`; else `dags/streams.yaml`, if in the working folder; else this project's."""
    named = config_file()
    if named is not None:
        return Path(named)
    local = Path("dags") / "streams.yaml"
    if local.is_file():
        return local
    project = Path(__file__).resolve().parents[5] / local
    return project if project.is_file() else local


def load_config(path: Path, *, lake: str) -> ProjectConfig:
    """Load a declaration file and check all of it; `lake` is the value of `{lake}` in it."""
    config = load_sound(path, lake=lake)
    for mistake in config.mistakes:
        raise mistake.error
    return config


def load_sound(path: Path, *, lake: str) -> ProjectConfig:
    """Load the valid declarations of a file; the others are in `mistakes`.

    Messages show the path as given here. In paths and source options `lake` is the value of
    `{lake}`, and `{here}` the file's folder.
    """
    loader = _Loader(path)
    sections = loader.sections()
    variables = {"lake": lake, "here": str(path.absolute().parent)}
    roots = loader.roots(sections["targets"], variables)
    loader.fill_in(sections, variables)
    config = ProjectConfig(
        path,
        loader.declared("streams", sections, partial(_model, Stream)),
        loader.declared("transforms", sections, partial(_model, Transform)),
        loader.declared("targets", sections, partial(_model, Target)),
        loader.declared("replays", sections, partial(_model, Replay)),
        loader.declared("pipelines", sections, _reference),
        roots,
    )
    replays = dict(config.replays)
    for name, replay in config.replays.items():
        with loader.part("replays", name, container=replays):
            _check_replay(loader.document, name, replay, config)
    if config.modules and (folder := str(config.modules[0].parent)) not in sys.path:
        # Last on the path, so that nothing there hides what is installed.
        sys.path.append(folder)
    return replace(config, replays=MappingProxyType(replays), mistakes=tuple(loader.mistakes))


def load_optional(named: str | None, *, lake: str, required: bool = False) -> ProjectConfig:
    """Load the valid declarations; none if no file was named and the default one is missing.

    Faulty declarations are in `mistakes`; a request for one of them fails. A `required` file must
    exist; `lake` is the value of `{lake}`.
    """
    if named is not None and not named.strip():
        raise InvalidRequestError(
            "CAP-DECLARE", "the path of the declarations is empty", "name the file, or leave it out"
        )
    path = default_path() if named is None else Path(named)
    if not required and named is None and not path.exists():
        return ProjectConfig(path, {}, {}, {}, {})
    config = load_sound(path, lake=lake)
    config.require_read()
    return config


class _Loader:
    """Loads a declaration file; invalid parts are recorded as mistakes and left out."""

    def __init__(self, path: Path) -> None:
        self.mistakes: list[Mistake] = []
        self.document = Document(path, {}, {})
        with self.part():
            self.document = read_document(path)

    @contextmanager
    def part(self, *place: str, container: dict[str, Any] | None = None) -> Iterator[None]:
        """Load a part of the file; on an error, remove it from `container` by its name."""
        try:
            yield
        except InvalidRequestError as error:
            self.mistakes.append(Mistake(place, error))
            if container is not None:
                container.pop(place[-1], None)

    def sections(self) -> dict[str, dict[str, object]]:
        """The sections, each a mapping of names; missing ones are empty."""
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

    def declared(
        self,
        section: str,
        sections: Mapping[str, Mapping[str, object]],
        read: Callable[[Document, Place, object], Model],
    ) -> Mapping[str, Model]:
        """The declarations of a section by name."""
        declared: dict[str, Model] = {}
        for name, value in sections[section].items():
            place = (section, name)
            with self.part(*place):
                try:
                    check_name(_KINDS[section], name)
                except InvalidRequestError as error:
                    raise self.document.error(place, error.message, error.hint) from None
                declared[name] = read(self.document, place, value)
        return MappingProxyType(declared)

    def roots(self, targets: dict[str, object], variables: Mapping[str, str]) -> tuple[str, ...]:
        """The list `roots` among the targets; without it, none, or a target of that name."""
        given = targets.get(ROOTS)
        if not isinstance(given, list | str):
            return ()
        del targets[ROOTS]
        place = ("targets", ROOTS)
        found: list[str] = []
        with self.part(*place):
            for root in [given] if isinstance(given, str) else given:
                if not isinstance(root, str):
                    raise self.document.error(place, "must be a list of folders and URIs")
                text = _substitute(self.document, place, root, _BRACES, variables)
                try:
                    # The lake may be where no target may.
                    found.append(text if text == variables["lake"] else check_root(text))
                except InvalidRequestError as error:
                    raise self.document.error(place, error.message, error.hint) from None
            if not found:
                raise self.document.error(place, "is empty; name at least one")
        return tuple(found)

    def fill_in(self, sections: dict[str, dict[str, object]], variables: Mapping[str, str]) -> None:
        """Replace `{lake}` and `{here}` in paths and in source options."""
        for holder, key, place in list(_with_variables(sections)):
            value = holder.get(key)
            if isinstance(value, str):
                # Options may hold JSON, whose braces are not variables.
                braces = _VARIABLE if "options" in place else _BRACES
                section, name = map(str, place[:2])
                with self.part(section, name, container=sections[section]):
                    holder[key] = _substitute(self.document, place, value, braces, variables)
                    if "options" in place:
                        _check_references(self.document, place, key, value)


def _model(model: type[Model], document: Document, place: Place, fields: object) -> Model:
    data: object = {} if fields is None else fields
    if isinstance(data, dict):
        if "name" in data:
            problem = "unknown key; the name is the key above it"
            raise document.error((*place, "name"), problem)
        data = {**data, "name": place[-1]}
    return read_declared(model, document, place, data)


def _reference(document: Document, place: Place, value: object) -> str:
    if not isinstance(value, str):
        raise document.error(place, "must be text: package.module:function")
    try:
        return reference(value)
    except ValueError as error:
        raise document.error(place, str(error)) from None


def _check_replay(document: Document, name: str, replay: Replay, config: ProjectConfig) -> None:
    problem = check_replay(replay, config.streams, config.registry, config.pipelines)
    if problem is not None:
        field, message = problem
        raise document.error(("replays", name, field), message, "see the declarations it names")
    target = config.targets.get(replay.target)
    duplicate = duplicate_name((*(target.checks if target else ()), *replay.checks))
    if duplicate is not None:
        message = f"{duplicate!r} is also a check of target {replay.target}"
        raise document.error(("replays", name, "checks"), message, "rename one of the two")


def _substitute(
    document: Document,
    place: Place,
    value: str,
    braces: re.Pattern[str],
    variables: Mapping[str, str],
) -> str:
    """`value` with its variables replaced, once."""
    allowed = f"variables are {one_of([f'{{{name}}}' for name in variables])}"
    for name in braces.findall(value):
        if name not in variables:
            problem = f"{{{name}}} is not a variable{did_you_mean(name, list(variables))}"
            raise document.error(place, problem, allowed)
    rest = braces.sub("", value)
    if braces is _BRACES and ("{" in rest or "}" in rest):
        raise document.error(place, "has an unpaired brace", allowed)
    return braces.sub(lambda match: variables[match.group(1)], value)


def _check_references(document: Document, place: Place, key: str, value: str) -> None:
    try:
        list(references({key: value}))
    except ValueError as error:
        raise document.error(place, str(error), "see Secrets in docs/configuration.md") from None


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
