"""YAML text as plain data, with the line of every key.

Scalars stay text as written: `NO` is not a boolean, `07:00` not a number, `2013-01-01` not a date.
The model of a field interprets its text. Only `null`, `~` and an empty value are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from capstan.errors import InvalidRequestError

Place = tuple[str | int, ...]
# The content of a YAML node: text, None, list or dict, nested.
Data = object

_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
# The C parser is ten times as fast, and each DAG file reads the declarations again.
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a declaration file: dicts, lists, text and None."""

    path: Path
    data: Data
    lines: Mapping[Place, int]  # from 1, of keys and list items, by place: `("streams", "a")`

    def line(self, place: Place) -> int:
        """The line of `place`, or of the nearest enclosing place with a line."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def error(self, place: Place, problem: str, hint: str = "") -> InvalidRequestError:
        """The error for `problem` at `place`, with file, line and key path."""
        return _error(self.path, self.line(place), place, problem, hint)


def read_document(path: Path) -> Document:
    """Read a YAML file with a mapping at the top; an empty file is an empty mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequestError(
            "CAP-DECLARE",
            f"{path}: cannot be read: {reason}",
            "give the file in CAPSTAN_CONFIG, or run in the folder that has dags/streams.yaml",
            file=str(path),
        ) from error
    try:
        _refuse_aliases(path, text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it is not YAML"
        line = 1 if mark is None else mark.line + 1
        raise _error(path, line, (), str(problem), "correct the YAML") from error
    lines: dict[Place, int] = {}
    data = {} if root is None else _plain(path, root, (), lines)
    if not isinstance(data, dict):
        raise _error(path, 1, (), "the file must be a mapping", "start with 'streams:'")
    return Document(path, data, lines)


def _refuse_aliases(path: Path, text: str) -> None:
    # An alias could make a small file endless, and has no line to report in a message.
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise _error(path, line, (), "aliases (*name) are not allowed", "repeat the value")
        if depth > _MAX_DEPTH:
            raise _error(path, line, (), f"nested deeper than {_MAX_DEPTH} levels", "")


def _plain(path: Path, node: yaml.Node, place: Place, lines: dict[Place, int]) -> Data:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == _NULL else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item, (*place, index), lines) for index, item in enumerate(node.value)]
    mapping: dict[str, Data] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag in (_NULL, _MERGE):
            raise _error(path, line, place, "a key must be a plain word", "")
        key = str(key_node.value)
        key_place = (*place, key)
        if key in mapping:
            problem = f"duplicate key; the first is on line {lines[key_place]}"
            raise _error(path, line, key_place, problem, "remove one of them")
        lines[key_place] = line
        mapping[key] = _plain(path, value_node, key_place, lines)
    return mapping


def _error(path: Path, line: int, place: Place, problem: str, hint: str) -> InvalidRequestError:
    key = ".".join(str(part) for part in place)
    location = f"{path}:{line}: {key}: " if key else f"{path}:{line}: "
    return InvalidRequestError(
        "CAP-DECLARE", f"{location}{problem}", hint, file=str(path), line=line, key=key
    )
