"""The documentation as a whole: its pages, their links, and the commands that they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from capstan.cli.app import app
from capstan.core.config import load_config
from tests.support.docs import PAGES, ROOT, anchors, blocks, commands, page

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
DECISIONS = ROOT / "docs" / "decisions"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*\b(?!-)")


def options(*named: object) -> set[str]:
    return {option for item in named for p in item.params for option in p.opts}  # type: ignore[attr-defined]


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 180


def test_every_page_is_listed_in_the_index() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", page("README"))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(listed) == pages


def test_the_readme_leads_to_what_users_read() -> None:
    linked = set(re.findall(r"\]\(((?:docs/)?[\w-]+(?:\.md)?)\)", PAGES["README.md"]))
    expected = {name for name in PAGES if name != "README.md"} | {"LICENSE"}
    # These are a page further on.
    assert expected - linked == {"docs/settings.md", "docs/protocol.md"}


@pytest.mark.parametrize(
    "document", [*PAGES, *(str(path.relative_to(ROOT)) for path in DECISIONS.glob("*.md"))]
)
def test_links_lead_somewhere(document: str) -> None:
    place = ROOT / document
    links = re.findall(r"\]\(([^)\s]*?)(?:#([^)]+))?\)", place.read_text(encoding="utf-8"))
    for path, anchor in links:
        if not path.startswith("http"):
            file = place.parent / path if path else place
            assert file.is_file(), path
            assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), anchor


def test_every_image_is_shown() -> None:
    shown = {
        name for text in PAGES.values() for name in re.findall(r"\]\((?:docs/)?images/(.+)\)", text)
    }
    assert shown == {path.name for path in (ROOT / "docs" / "images").iterdir()}


def test_every_decision_is_listed() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", index)
    assert listed == sorted(path.name for path in DECISIONS.glob("0*.md"))
    for name in listed:
        text = (DECISIONS / name).read_text(encoding="utf-8")
        for part in (
            "**Context.**",
            "**Choice.**",
            "**Price.**",
            "**What would change our mind.**",
        ):
            assert text.count(part) == 1, f"{name}: {part}"


def test_every_option_that_is_named_exists() -> None:
    known = options(typer.main.get_command(app), *COMMANDS.values())
    guides = {name: text for name, text in PAGES.items() if name != "CHANGELOG.md"}
    named = set(OPTION.findall("\n".join(guides.values())))
    docker = {"--build", "--detach", "--profile", "--rm", "--wait"}
    bench = {"--rows", "--longer"}
    partitions = {"--partition-key", "--partition-date-start", "--partition-date-end"}
    airflow = {"--dag-id", "--from-date", "--to-date", "--max-active-runs", *partitions}
    spark = {"--jars", "--request", "--result", "--attempt", "--join", "--deploy-mode"}
    launcher = {"--home", "--dags", "--database"}
    lock = {"--upgrade"}
    assert named - known == {"--help", *spark, *docker, *bench, *airflow, *launcher, *lock}


@pytest.mark.parametrize("document", PAGES)
def test_commands_that_are_shown_have_their_options(document: str) -> None:
    everywhere = options(typer.main.get_command(app)) | {"--help"}
    for line in commands(PAGES[document]):
        name, *words = shlex.split(line.replace("'", " "), comments=True)
        assert name in COMMANDS, line
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= options(COMMANDS[name]) | everywhere, line


def test_targets_of_make_exist() -> None:
    rules = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    text = "\n".join(PAGES.values())
    named = set(re.findall(r"(?:^    |`)make ([a-z0-9-]+)", text, flags=re.MULTILINE))
    assert {"demo", "test", "check", "bench"} <= named
    assert named <= rules
    first = re.findall(r"^    make (\w+)", PAGES["README.md"], flags=re.MULTILINE)
    assert first == ["demo", "test"]


def test_the_readme_shows_the_declarations_of_the_configuration(tmp_path: Path) -> None:
    (shown,) = blocks(PAGES["README.md"], "yaml")
    assert shown == blocks(page("configuration"), "yaml")[0]
    path = tmp_path / "streams.yaml"
    path.write_text(shown, encoding="utf-8")
    assert load_config(path, lake="/lake").replay("revenue").transform == "revenue"
