"""The reference pages against the code: commands, options, variables, metrics, keys, types."""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import partial
from textwrap import indent
from typing import TYPE_CHECKING

import pytest
import typer

from capstan import errors
from capstan.airflow.local.__main__ import main as launch
from capstan.cli.app import _INTERRUPTED, app
from capstan.core.config import load_config, models
from capstan.core.config.loading.secret_references import references
from capstan.interop.timely import codec_of
from capstan.jobs import handlers
from capstan.jobs.main import main as run_job
from capstan.pipeline import operators
from capstan.pipeline.graph.operator import OperatorSpec
from capstan.pipeline.keyed.keyed_aggregate import KeyedAggregate
from capstan.pipeline.keyed.keyed_logic import KeyedLogic
from capstan.reporting.metrics import METRICS
from capstan.spark.setup.jars import KAFKA, S3
from capstan.spark.setup.spark_series import DELTA_VERSION, SERIES
from capstan.storage.lake import TapePaths
from tests.support.docs import ROOT, blocks, page, section, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LIBRARY = ROOT / "lib" / "capstan"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*\b(?!-)")
OWN = re.compile(r"CAPSTAN_[A-Z_]+")


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"^\| `([a-z]+)[ `]", section(page("cli"), "Commands"), re.MULTILINE))
    assert listed == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_named(command: str) -> None:
    options = {o for p in COMMANDS[command].params for o in p.opts if o.startswith("--")}
    assert options - set(OPTION.findall(page("cli"))) == set()


@pytest.mark.parametrize(
    ("program", "run"),
    [
        ("`make airflow ARGS=...`", launch),
        ("`spark_apps/*.py`, `python -m capstan.jobs JOB`", partial(run_job, handlers.verify)),
    ],
)
def test_options_of_a_program_are_those_that_it_has(
    program: str, run: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    has = set(OPTION.findall(capsys.readouterr().out))
    (reported,) = (row[1] for row in table(page("settings"), "program") if row[0] == program)
    assert set(OPTION.findall(reported)) == has - {"--help"}


def test_every_variable_that_is_read_is_named() -> None:
    """Those of ours wherever they stand in the code, and others where the environment is asked."""
    read = set()
    for path in LIBRARY.rglob("*.py"):
        if path.parent.name != "testing":
            text = path.read_text(encoding="utf-8")
            read |= set(re.findall(r"""environ\.get\(\s*"([A-Z_]+)\"""", text))
            read |= set(re.findall(r"""\"([A-Z_]+)" (?:not )?in os\.environ""", text))
            constants = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
            read |= {c for c in constants if isinstance(c, str) and OWN.fullmatch(c)}
    # The launcher knows its processes by this; the others are said by who starts the program.
    read -= {"CAPSTAN_LAUNCHED", "PATH", "PYSPARK_GATEWAY_PORT"}
    # The former name of CAPSTAN_CONFIG.
    read -= {"CAPSTAN_STREAMS"}
    reported = {name for row in table(page("settings"), "variable") for name in row[0].split("`")}
    assert read - reported == set()
    assert {name for name in reported if OWN.fullmatch(name)} - read == set()


def test_variables_of_airflow_are_those_that_it_reads() -> None:
    text = (LIBRARY / "airflow" / "settings.py").read_text(encoding="utf-8")
    reported = [row[0].strip("`") for row in table(page("airflow"), "variable")]
    read = set(re.findall(r"(?:environ\.get|named_by)\(\"(CAPSTAN_\w+)", text))
    assert "config_file()" in text
    assert set(reported) == {*read, "CAPSTAN_CONFIG"}


def test_tables_of_a_tape_are_those_of_the_format() -> None:
    paths = {field.name for field in dataclasses.fields(TapePaths)[1:]}
    listed = table(page("quickstart"), "tape")
    assert {row[0].strip("`") for row in listed} == paths - {"checkpoint", "totals", "settled"}
    assert f"A tape is {('four', 'five', 'six')[len(listed) - 4]} tables" in page("quickstart")


def test_figures_are_those_of_the_report() -> None:
    report = (ROOT / "tests" / "bench" / "README.md").read_text(encoding="utf-8")
    measured = [row[:3] for row in table(report, "benchmark")]
    rows = table(page("benchmarks"), "benchmark")
    assert rows
    assert [row for row in rows if row not in measured] == []
    for what in (r"\d+ cores with \d+ GiB", r"Spark [\d.]+\d", r"Delta [\d.]+\d", r"Java \d+"):
        here, there = (re.findall(what, text) for text in (page("benchmarks"), report))
        assert (len(here), here[:1]) == (1, there[:1]), what


def test_every_operator_is_listed() -> None:
    public = [getattr(operators, name) for name in operators.__all__]
    every = [*public, KeyedAggregate, KeyedLogic]
    specs = {item.__name__ for item in every if hasattr(item, "preserves")} - {
        OperatorSpec.__name__
    }
    listed = {
        name
        for row in table(page("pipelines"), "operator")
        for name in re.findall(r"`([A-Z]\w+)`", row[0])
    }
    assert listed == specs


def test_exit_codes_are_those_of_the_errors() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    coded = {c.exit_code for c in classes if issubclass(c, errors.CapstanError)}
    assert {int(row[0]) for row in table(page("cli"), "exit code")} == {0, _INTERRUPTED, *coded}


def test_every_metric_is_listed() -> None:
    listed = {
        row[0].strip("`"): row[1] for row in table(page("monitoring"), "metric, after `capstan_`")
    }
    # Those of numbers are named by their rule.
    reported = {name: m for name, m in METRICS.items() if not name.endswith("_value")}
    assert set(listed) == set(reported)
    for name, labels in listed.items():
        assert re.findall(r"`(\w+)`", labels) == list(reported[name].labels), name


def test_settings_of_the_deployment_are_those_of_its_file() -> None:
    compose = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    reported = {
        name
        for row in table(page("deployment"), "in `.env`")
        for name in re.findall(r"`([A-Z0-9_]+)`", row[0])
    }
    # Those that have to be set are made by docker/make-env.
    assert reported == set(re.findall(r"\$\{(\w+):-", compose))
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", compose))
    for names, _, usual in table(page("deployment"), "in `.env`"):
        item = [part.strip(" `") for part in usual.split(",")]
        for name, printed in zip(re.findall(r"`([A-Z0-9_]+)`", names), item, strict=False):
            assert printed in (defaults.get(name), "none", "text", "off"), name


def test_connectors_for_the_image_are_those_that_can_be_fetched() -> None:
    [row] = [row for row in table(page("deployment"), "in `.env`") if row[0] == "`CONNECTORS`"]
    assert re.findall(r"`(\w+)`", row[1]) == [KAFKA.name, S3.name]
    assert row[2].strip("`") == KAFKA.name


def test_the_docs_say_what_goes_with_each_spark() -> None:
    rows = table(page("install"), "minor version of Spark")
    assert [row[0] for row in rows] == [series.name for series in SERIES]
    for row, series in zip(rows, SERIES, strict=True):
        assert row[1:3] == [DELTA_VERSION, series.hadoop]
        assert (row[4] == "read and written") == series.writes_s3


def test_its_declarations_can_be_read(tmp_path: Path) -> None:
    example, created, roots, policy, kafka, selected, made, secrets = blocks(
        page("configuration"), "yaml"
    )
    path = tmp_path / "streams.yaml"
    path.write_text(example, encoding="utf-8")
    declared = load_config(path, lake="/lake")
    assert list(declared.streams) == ["orders"]
    assert declared.replay("revenue").transform == "revenue"
    path.write_text(example + indent(policy, "    "), encoding="utf-8")
    declared = load_config(path, lake="/lake")
    assert (declared.replay("revenue").backfill.to_json()["at_most"]) == 4
    path.write_text(created, encoding="utf-8")
    (layout,) = (target.create for target in load_config(path, lake="/lake").targets.values())
    assert layout is not None
    assert layout.cluster_by == ("_time.event", "customer")
    path.write_text(roots, encoding="utf-8")
    assert load_config(path, lake="/lake").roots[0] == "/lake"
    path.write_text("streams:\n  clicks:\n" + indent(kafka, "    "), encoding="utf-8")
    (clicks,) = load_config(path, lake="/lake").streams.values()
    assert (clicks.source.format, clicks.workers.by) == ("kafka", "partition")
    path.write_text(selected, encoding="utf-8")
    (orders,) = load_config(path, lake="/lake").streams.values()
    assert (orders.source.selection, orders.source.where) != (None, None)
    path.write_text(made, encoding="utf-8")
    (orders,) = load_config(path, lake="/lake").streams.values()
    assert orders.source.function == "shop_sources:orders"
    rest = "workers: {by: partition}\ntime: {domain: epoch}\n"
    path.write_text("streams:\n  orders:\n" + indent(secrets + rest, "    "), encoding="utf-8")
    (orders,) = load_config(path, lake="/lake").streams.values()
    assert len(list(references(orders.source.options))) == 5


def test_every_key_of_the_declarations_is_told() -> None:
    declared = [
        item
        for item in vars(models).values()
        if isinstance(item, type) and issubclass(item, models.Declared)
    ]
    keys = {key.name for item in declared if item is not models.Declared
            for key in dataclasses.fields(item)} - {"name"}  # fmt: skip
    head = (ROOT / "dags" / "streams.yaml").read_text(encoding="utf-8").split("\nstreams:", 1)[0]
    for text in (head, section(page("configuration"), "Keys")):
        assert {key for key in keys if not re.search(rf"\b{key}\b", text)} == set()


def test_types_that_it_names_are_known() -> None:
    for row in table(page("interop"), "type"):
        names = re.findall(r"`([^`]+)`", row[0])
        assert names
        for name in names:
            codec_of(name)  # Refused, were it not known.
