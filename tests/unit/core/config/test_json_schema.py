"""The schema by which editors complete `streams.yaml`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from capstan.core.config.models import SCHEMA
from tests.support.declaration_schema import declaration_schema, schema_text

ROOT = Path(__file__).parents[4]
FLIGHTS = ROOT / "dags" / "streams.yaml"
DEMO = ROOT / "lib" / "capstan" / "demo" / "streams.yaml"
PROJECTS = [
    FLIGHTS,
    DEMO,
    ROOT / "lib" / "capstan" / "cli" / "scaffold" / "templates" / "streams.yaml",
]


def problems(data: object) -> list[str]:
    validator = Draft202012Validator(declaration_schema())
    plain = json.loads(json.dumps(data, default=str))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(plain)]


def test_the_demo_declares_what_the_dags_of_the_repository_do() -> None:
    assert yaml.safe_load(DEMO.read_text("utf-8")) == yaml.safe_load(FLIGHTS.read_text("utf-8"))


def test_the_shipped_file_is_made_from_the_models() -> None:
    made = SCHEMA.read_text(encoding="utf-8") == schema_text()
    assert made, "run `python -m tests.support.declaration_schema`"


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.BaseLoader])
def test_declarations_that_load_are_valid(path: Path, loader: type) -> None:
    assert problems(yaml.load(path.read_text(encoding="utf-8"), loader)) == []


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_the_first_line_names_the_schema(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    # `capstan init` writes the schema beside the declarations.
    assert name == SCHEMA.name or (path.parent / name).resolve() == SCHEMA.resolve()


@pytest.mark.parametrize(
    ("section", "name", "key", "value"),
    [
        ("streams", "flights", "sources", {}),
        ("streams", "flights", "late", "drop"),
        ("streams", "flights", "workers", {"by": "hash"}),
        ("transforms", "flights_by_day", "sequel", "SELECT 1"),
        ("replays", "march_departures", "mode", "overwrite"),
        ("replays", "march_departures", "workers", {"EWR": True}),
        ("targets", "flights_by_day", "checks", [{"unique": "day", "over": 3}]),
    ],
)
def test_what_the_loader_refuses_is_marked(
    section: str, name: str, key: str, value: object
) -> None:
    data = yaml.safe_load(FLIGHTS.read_text(encoding="utf-8"))
    data[section][name][key] = value
    assert problems(data)


def test_a_stream_that_a_query_records_is_valid() -> None:
    data = yaml.safe_load(FLIGHTS.read_text(encoding="utf-8"))
    data["streams"]["flights"]["source"] = {"format": "query"}
    assert problems(data) == []
    source = declaration_schema()["$defs"]["Source"]["properties"]["format"]
    assert "`query` for a stream that a streaming query of yours records" in source["description"]


def test_each_key_has_a_description() -> None:
    stream = declaration_schema()["$defs"]["Stream"]["properties"]
    lacking = [key for key, field in stream.items() if not field.get("description")]
    assert lacking == []


@pytest.mark.parametrize("roots", [["{lake}", "/data"], "/data", {"time": "day"}, None])
def test_roots_are_a_list_or_a_target(roots: object) -> None:
    assert problems({"targets": {"roots": roots}}) == []
    assert problems({"targets": {"other": ["/data"]}})
    assert problems({"targets": {"roots": [1]}})
