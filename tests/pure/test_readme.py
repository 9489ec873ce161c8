"""What the README promises is there: commands, options, targets, exit codes, its declarations."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from textwrap import indent

import pytest
import typer

from capstan import errors, state
from capstan.cli import main
from capstan.cli.app import _INTERRUPTED, app
from capstan.dag import operators
from capstan.declare import load, models
from capstan.interop import codec_of
from capstan.metrics import METRICS
from capstan.runtime.archive import pyspark_home
from capstan.runtime.jars import HADOOP_VERSION, KAFKA, S3

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def table(head: str) -> list[list[str]]:
    """The rows of the table that begins with this heading."""
    lines = TEXT.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
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
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*\b(?!-)", TEXT))
    docker = {"--build", "--detach", "--profile", "--rm", "--wait"}
    bench = {"--rows", "--longer"}
    airflow = {"--dag-id", "--from-date", "--to-date", "--max-active-runs"}
    spark = {"--jars", "--request", "--result"}
    assert named - known == {"--help", *spark, *docker, *bench, *airflow}


def test_every_option_of_a_replay_is_named() -> None:
    options = {o for p in COMMANDS["replay"].params for o in p.opts if o.startswith("--")}
    assert {option for option in options if option not in TEXT} == set()


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
    section = TEXT.split("## A stream of your own", 1)[1].split("\n### ", 1)[0]
    for text in (head, section):
        assert {key for key in keys if not re.search(rf"\b{key}\b", text)} == set()


def test_its_programs_can_be_compiled() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        compile(block, "README.md", "exec")


def test_its_example_of_recordings_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section = TEXT.split("## Recordings of timely dataflow", 1)[1].split("\n## ", 1)[0]
    (program,) = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize("document", ["README.md", "lib/PROTOCOL.md", "lib/decisions/README.md"])
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
    folder = ROOT / "lib" / "decisions"
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
