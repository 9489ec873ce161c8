"""The JSON Schema of `streams.yaml`, made from the models that read it.

Run `python -m tests.support.declaration_schema` to write the shipped file again after a model has
changed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import TypeAdapter

from capstan.core.config.loading.loader import ROOTS
from capstan.core.config.models import SCHEMA, Stream, Target
from capstan.core.config.replays import Replay
from capstan.core.config.transforms import Transform

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# YAML reads `12` and `true` as numbers and booleans; the loader takes both as text.
_SCALAR = ["string", "number", "boolean"]
_APART = frozenset({"title", "description", "properties"})
_SECTIONS = {"streams": Stream, "transforms": Transform, "targets": Target, "replays": Replay}


def declaration_schema() -> dict[str, Any]:
    """The schema of a whole declaration file, made from the models that read it."""
    definitions: dict[str, Any] = {}
    sections: dict[str, Any] = {
        "pipelines": {
            "description": "Python pipelines by name, each as package.module:function.",
            "type": ["object", "null"],
            "additionalProperties": {"type": "string", "pattern": "^[A-Za-z_][\\w.]*:[A-Za-z_]"},
        }
    }
    for section, model in _SECTIONS.items():
        schema = TypeAdapter(model).json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        definitions[model.__name__] = schema
        # The key above a declaration is its name.
        schema["properties"].pop("name")
        schema["required"] = [key for key in schema.get("required", []) if key != "name"]
        entry: dict[str, Any] = {"$ref": f"#/$defs/{model.__name__}"}
        if not schema["required"]:
            entry = {"anyOf": [entry, {"type": "null"}]}
        sections[section] = {"type": ["object", "null"], "additionalProperties": entry}
    # As a list it names no target.
    listed = [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]
    target = sections["targets"]["additionalProperties"]
    sections["targets"]["properties"] = {
        ROOTS: {
            "description": "Folders and URIs below which a form of Airflow may name targets; by "
            "default the lake.",
            "anyOf": [*listed, *target["anyOf"]],
        }
    }
    return {
        "$schema": _DIALECT,
        "title": "Capstan declarations",
        "type": "object",
        "additionalProperties": False,
        "properties": dict(sorted(sections.items())),
        "$defs": {name: _as_yaml(schema) for name, schema in sorted(definitions.items())},
    }


def schema_text() -> str:
    """The schema as the shipped file has it."""
    return json.dumps(declaration_schema(), indent=1) + "\n"


def _as_yaml(schema: object) -> Any:
    """A schema of models as one of YAML: scalars may stand unquoted, lists of one without dash."""
    if isinstance(schema, list):
        return [_as_yaml(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    part = {key: _as_yaml(value) for key, value in schema.items() if key not in _APART}
    text, attributes = _described(schema.get("description", ""))
    if text:
        part["description"] = text
    if "properties" in schema:
        part["properties"] = {
            name: _as_yaml({"description": attributes.get(name, ""), **field})
            for name, field in schema["properties"].items()
        }
    if part.get("type") == "string" and not {"const", "enum", "pattern"} & set(part):
        # Lengths and instants as well: the loader reads more than ISO 8601, such as `1 hour`.
        part.pop("format", None)
        part["type"] = _SCALAR
    if part.get("type") == "array" and part["items"].get("type") == _SCALAR:
        array = {"type": part.pop("type"), "items": part.pop("items")}
        part["anyOf"] = [array, {"type": _SCALAR}]
    return part


def _for_yaml(text: str) -> str:
    """A description for people who write YAML, where a key is omitted instead of None."""
    text = re.sub(r", or None (for|if|to)\b", r"; omit it \1", text)
    text = re.sub(r"(?<=; )None (for|if|to)\b", r"omit it \1", text)
    return re.sub(r"\bNone (for|if|to)\b", r"Omit it \1", text)


def _described(docstring: str) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring on one line, and the description of each attribute."""
    summary, _, rest = docstring.partition("\n\n")
    _, _, listed = rest.partition("Attributes:\n")
    attributes: dict[str, str] = {}
    for line in listed.splitlines():
        name, colon, text = line.strip().partition(": ")
        if colon and line.startswith("    ") and not line.startswith("     "):
            last = name
            attributes[last] = text
        elif attributes:
            attributes[last] += f" {line.strip()}"
    return " ".join(summary.split()), {
        key: _for_yaml(text.strip()) for key, text in attributes.items()
    }


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
