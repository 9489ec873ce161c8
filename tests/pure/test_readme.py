"""What the README promises is there: commands, options, targets, exit codes, its declarations."""

from __future__ import annotations

import ast
import dataclasses
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import typer

from capstan import errors, state, submit
from capstan.cli import main
from capstan.cli.app import _INTERRUPTED, app
from capstan.dag import TIME, DagBuilder, operators
from capstan.declare import load, models
from capstan.interop import codec_of
from capstan.launcher.__main__ import main as launch
from capstan.metrics import METRICS
from capstan.pipeline import Pipeline, Pipelines, Sink
from capstan.pipeline.definition import register
from capstan.pipeline.local import run_here
from capstan.pipeline.reach import everything
from capstan.runtime.archive import pyspark_home
from capstan.runtime.jars import HADOOP_VERSION, KAFKA, S3
from capstan.submit.program import main as run_app
from capstan.tape.lake import TapePaths
from capstan.times import Kind, TimeType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "lib" / "capstan"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PYTHON = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*\b(?!-)")
OWN = re.compile(r"CAPSTAN_[A-Z_]+")
RECORDINGS = "Recordings of timely dataflow"


def section(title: str) -> str:
    """The text under a heading, up to the next one of its kind."""
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def table(head: str, text: str = TEXT) -> list[list[str]]:
    """The rows of the table that begins with this heading."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r" \|(?= )", line.strip("|"))])
    return rows


def test_every_command_is_listed() -> None:
    listed = {row[0].strip("`").split()[0] for row in table("command")}
    assert listed == set(COMMANDS)


def test_every_option_that_is_named_exists() -> None:
    known = {
        option
        for command in [typer.main.get_command(app), *COMMANDS.values()]
        for parameter in command.params
        for option in parameter.opts
    }
    named = set(OPTION.findall(TEXT))
    docker = {"--build", "--detach", "--profile", "--rm", "--wait"}
    bench = {"--rows", "--longer"}
    airflow = {"--dag-id", "--from-date", "--to-date", "--max-active-runs"}
    spark = {"--jars", "--request", "--result"}
    launcher = {"--home", "--dags", "--database"}
    assert named - known == {"--help", *spark, *docker, *bench, *airflow, *launcher}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_named(command: str) -> None:
    options = {o for p in COMMANDS[command].params for o in p.opts if o.startswith("--")}
    assert options - set(OPTION.findall(section("The command line"))) == set()


@pytest.mark.parametrize(
    ("program", "run"),
    [("`make airflow ARGS=...`", launch), ("`spark_apps/*.py`", partial(run_app, submit.verify))],
)
def test_options_of_a_program_are_those_that_it_has(
    program: str, run: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    has = set(OPTION.findall(capsys.readouterr().out))
    (told,) = (row[1] for row in table("program") if row[0] == program)
    assert set(OPTION.findall(told)) == has - {"--help"}


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
    told = {name for row in table("variable", section("Settings")) for name in row[0].split("`")}
    assert read - told == set()
    assert {name for name in told if OWN.fullmatch(name)} - read == set()


def test_variables_of_airflow_are_those_that_it_reads() -> None:
    text = (LIBRARY / "airflow" / "setting.py").read_text(encoding="utf-8")
    told = [row[0].strip("`") for row in table("variable", section("The same from Airflow"))]
    assert set(told) == set(re.findall(r"environ\.get\(\"(CAPSTAN_\w+)", text))


def test_tables_of_a_tape_are_those_of_the_format() -> None:
    paths = {name for name, each in vars(TapePaths).items() if isinstance(each, property)}
    assert {row[0].strip("`") for row in table("tape")} == paths - {"checkpoint"}
    assert f"A tape is {('four', 'five', 'six')[len(table('tape')) - 4]} tables" in TEXT


def test_figures_are_those_of_the_report() -> None:
    report = (ROOT / "tests" / "bench" / "README.md").read_text(encoding="utf-8")
    measured = [row[:3] for row in table("what", report)]
    rows = table("what", section("What it costs"))
    assert rows
    assert [row for row in rows if row not in measured] == []
    for what in (r"\d+ cores with \d+ GiB", r"Spark [\d.]+\d", r"Delta [\d.]+\d", r"Java \d+"):
        here, there = (re.findall(what, text) for text in (section("What it costs"), report))
        assert (len(here), here[:1]) == (1, there[:1]), what


def test_every_operator_is_listed() -> None:
    every = {**vars(operators), **vars(state)}
    specs = {name for name, found in every.items() if isinstance(found, type)}
    specs = {name for name in specs if hasattr(every[name], "preserves")}
    listed = {name for row in table("operator") for name in re.findall(r"`([A-Z]\w+)`", row[0])}
    assert listed == specs


def test_exit_codes_are_those_of_the_errors() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    coded = {c.exit_code for c in classes if issubclass(c, errors.CapstanError)}
    assert {int(row[0]) for row in table("exit code")} == {0, _INTERRUPTED, *coded}


def test_every_metric_is_listed() -> None:
    listed = {row[0].strip("`"): row[1] for row in table("metric, after `capstan_`")}
    # Those of numbers are named by their rule.
    told = {name: m for name, m in METRICS.items() if not name.endswith("_value")}
    assert set(listed) == set(told)
    for name, labels in listed.items():
        assert re.findall(r"`(\w+)`", labels) == list(told[name].labels), name


def test_settings_of_the_deployment_are_those_of_its_file() -> None:
    compose = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    told = {name for row in table("in `.env`") for name in re.findall(r"`([A-Z0-9_]+)`", row[0])}
    # Those that have to be set are made by docker/make-env.
    assert told == set(re.findall(r"\$\{(\w+):-", compose))
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", compose))
    for names, _, usual in table("in `.env`"):
        each = [part.strip(" `") for part in usual.split(",")]
        for name, said in zip(re.findall(r"`([A-Z0-9_]+)`", names), each, strict=False):
            assert said in (defaults.get(name), "none", "text", "off"), name


def test_connectors_for_the_image_are_those_that_can_be_fetched() -> None:
    [row] = [row for row in table("in `.env`") if row[0] == "`CONNECTORS`"]
    assert re.findall(r"`(\w+)`", row[1]) == [KAFKA.name, S3.name]
    assert row[2].strip("`") == KAFKA.name
    hadoop = next((pyspark_home() / "jars").glob("hadoop-client-api-*.jar")).stem.split("-")[-1]
    assert hadoop == HADOOP_VERSION


def test_targets_of_make_exist() -> None:
    rules = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([a-z0-9]+)", TEXT, flags=re.MULTILINE))
    assert named
    assert named <= rules


def test_its_declarations_can_be_read(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    path = tmp_path / "streams.yaml"
    path.write_text(blocks[0], encoding="utf-8")
    declared = load(path, lake="/lake")
    assert list(declared.streams) == ["orders"]
    assert declared.replay("revenue").transform == "revenue"
    path.write_text("streams:\n  clicks:\n" + indent(blocks[1], "    "), encoding="utf-8")
    (clicks,) = load(path, lake="/lake").streams.values()
    assert (clicks.source.format, clicks.workers.by) == ("kafka", "partition")


def test_every_key_of_the_declarations_is_told() -> None:
    declared = [
        each
        for each in vars(models).values()
        if isinstance(each, type) and issubclass(each, models.Declared)
    ]
    keys = {key.name for each in declared if each is not models.Declared
            for key in dataclasses.fields(each)} - {"name"}  # fmt: skip
    head = (ROOT / "dags" / "streams.yaml").read_text(encoding="utf-8").split("\nstreams:", 1)[0]
    own = section("A stream of your own").split("\n### ", 1)[0]
    for text in (head, own):
        assert {key for key in keys if not re.search(rf"\b{key}\b", text)} == set()


def test_its_programs_are_run() -> None:
    """Those that look into the lake by `tests/spark/test_demo.py`, the others below."""
    looking = PYTHON.findall(section("Look further"))
    assert all("lake/" in block for block in looking)
    others = [*PYTHON.findall(section("Pipelines")), *PYTHON.findall(section(RECORDINGS))]
    assert sorted([*looking, *others]) == sorted(PYTHON.findall(TEXT))
    for block in looking:
        compile(block, "README.md", "exec")


def test_its_pipelines_run(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Pipelines()
    monkeypatch.setattr("capstan.pipeline.pipeline", known.pipeline)
    made: dict[str, Any] = {"__name__": "readme"}
    for block in PYTHON.findall(section("Pipelines")):
        exec(block, made)
    first = datetime(2024, 5, 1, tzinfo=UTC)
    orders = [("ada", 5, 7), ("bob", 20, 1), ("ada", 59, 2), ("ada", 60, 4), ("bob", 185, 8)]
    micros = [int(first.timestamp()) * 10**6 + minute * 60 * 10**6 for _, minute, _ in orders]
    customers, _, amounts = zip(*orders, strict=True)
    records = pa.table({TIME: micros, "customer": customers, "amount": amounts})

    def ran(pipeline: Pipeline, sink: str) -> list[dict[str, object]]:
        reach = everything(TimeType.of(event=Kind.TIMESTAMP))
        results = [run_here(records, pipeline, reach, peers=peers).sinks[sink] for peers in (1, 2)]
        one, other = (result.sort_by([(TIME, "ascending"), ("customer", "ascending")])
                      for result in results)  # fmt: skip
        assert one == other
        return one.drop_columns([TIME]).to_pylist()

    hours = ran(known.get("hourly_revenue"), "hours")
    zero, hour = micros[0] - 5 * 60 * 10**6, 3600 * 10**6
    assert [(*row.values(),) for row in hours] == [
        ("ada", zero, zero + hour, 9),
        ("bob", zero, zero + hour, 1),
        ("ada", zero + hour, zero + 2 * hour, 4),
        ("bob", zero + 3 * hour, zero + 4 * hour, 8),
    ]

    running = DagBuilder().source("orders", made["orders"]).operator("total", made["total"])
    register("readme:totals", running.connect("orders", "total").sink_for("total", "out").build)
    totals = ran(Pipeline("totals", "readme:totals", (Sink("out"),)), "out")
    assert [(*row.values(),) for row in totals] == [
        ("ada", 7), ("bob", 1), ("ada", 9), ("ada", 13), ("bob", 9)
    ]  # fmt: skip


def test_its_example_of_recordings_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = PYTHON.findall(section(RECORDINGS))
    exec(program, {})
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "True"
    assert {line for line in said if line.endswith("is at []")} == {
        f"{n} is at []" for n in range(3)
    }
    assert sum("(" in line for line in said) == 50
    types = ["--time-type", "u64", "--record-type", "u64"]
    assert main(["check", str(tmp_path), *types]) == 0


def test_types_that_it_names_are_known() -> None:
    for row in table("type"):
        names = re.findall(r"`([^`]+)`", row[0])
        assert names
        for name in names:
            codec_of(name)  # Refused, were it not known.


@pytest.mark.parametrize("document", ["README.md", "docs/protocol.md", "docs/decisions/README.md"])
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    places = [
        place for place in re.findall(r"\]\(([^)#]+)\)", text) if not place.startswith("http")
    ]
    assert [p for p in places if not (ROOT / document).parent.joinpath(p).is_file()] == []
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    anchors = re.findall(r"\]\(#([^)]+)\)", text)
    assert [anchor for anchor in anchors if anchor not in headings] == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in folder.glob("0*.md"))
    for name in listed:
        text = (folder / name).read_text(encoding="utf-8")
        for part in (
            "**Context.**",
            "**Choice.**",
            "**Price.**",
            "**What would change our mind.**",
        ):
            assert text.count(part) == 1, f"{name}: {part}"
