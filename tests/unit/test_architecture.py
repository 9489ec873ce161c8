"""The house: where imports may point, and how large a room may grow."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter.cli import lint_imports

from capstan import errors
from capstan.cli.app import app
from capstan.pipeline.graph import errors as dag_errors
from capstan.pipeline.state import errors as state_errors

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "lib"
MODULES = sorted((LIBRARY / "capstan").rglob("*.py"))
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = {c["id"]: c for c in CONFIG["tool"]["importlinter"]["contracts"]}


def name_of(module: Path) -> str:
    return str(module.relative_to(LIBRARY))


def imports_of(module: Path) -> set[str]:
    """Top-level packages that a module imports, anywhere in it."""
    actual: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            actual |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            actual.add(node.module.split(".")[0])
    return actual


def test_no_two_classes_share_a_name() -> None:
    nodes = (node for module in MODULES for node in ast.walk(ast.parse(module.read_text("utf-8"))))
    named = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, times in named.items() if times > 1] == []


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_imports_keep_their_direction(
    contract: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    ended = lint_imports(
        config_filename=str(ROOT / "pyproject.toml"),
        limit_to_contracts=(contract,),
        cache_dir=None,
        no_cache=True,
    )
    assert ended == 0, capsys.readouterr().out


def test_every_room_has_its_place_in_the_layers() -> None:
    rooms = {path.stem for path in (LIBRARY / "capstan").iterdir() if path.suffix == ".py"}
    rooms |= {path.parent.name for path in (LIBRARY / "capstan").glob("*/__init__.py")}
    layers = " ".join(CONTRACTS["layers"]["layers"])
    placed = set(layers.replace("(", " ").replace(")", " ").replace(":", " ").split())
    assert rooms - {"__init__"} <= placed


def test_pure_rooms_are_all_under_the_contract() -> None:
    assert set(CONTRACTS["pure"]["source_modules"]) >= {
        f"capstan.{room}"
        for room in (
            "errors",
            "telemetry",
            "core",
            "interop.timely",
            "pipeline.graph",
            "pipeline.engine",
        )
    }
    assert set(CONTRACTS["pure"]["forbidden_modules"]) >= {"pyspark", "airflow"}


def test_modules_are_at_most_400_lines_long() -> None:
    lengths = {
        name_of(module): len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES
    }
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


ERRORS = {name for name, each in vars(errors).items() if hasattr(each, "exit_code")}


def without_hint(module: Path) -> list[str]:
    """Where a module makes an error that does not say what to do."""
    calls = [
        node
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS
    ]
    empty = [n for n in calls if not n.args[2:] or getattr(n.args[2], "value", "said") == ""]
    return [f"{name_of(module)}:{node.lineno}" for node in empty]


def test_no_room_has_more_than_15_modules() -> None:
    rooms = Counter(module.parent for module in MODULES if module.name != "__init__.py")
    assert [name_of(room) for room, modules in rooms.items() if modules > 15] == []


def test_tests_of_a_module_are_where_it_is() -> None:
    """`tests/unit/<package>/test_<module>.py`; a test of several modules is in their package."""
    unit, product = ROOT / "tests" / "unit", LIBRARY / "capstan"
    places: dict[str, set[Path]] = {}
    for module in MODULES:
        places.setdefault(module.stem, set()).add(module.parent.relative_to(product))
    tests = {test: test.parent.relative_to(unit) for test in unit.rglob("test_*.py")}
    apart = {Path(), *map(Path, ("bench", "reference", "support"))}
    wrong = [
        str(test.relative_to(unit))
        for test, folder in tests.items()
        if folder not in apart
        if not (product / folder).is_dir()
        or folder not in places.get(test.stem.removeprefix("test_"), {folder})
    ]
    assert wrong == []


def test_no_script_shadows_the_standard_library() -> None:
    """Python puts a script's folder first on its path: a `types.py` in it breaks every import."""
    rooms = {module.parent for module in MODULES if '"__main__"' in module.read_text("utf-8")}
    hiding = {name_of(module) for room in rooms for module in room.glob("*.py")}
    names = sys.stdlib_module_names - {"__init__", "__main__"}
    assert not {name for name in hiding if Path(name).stem in names}


def test_every_error_says_what_to_do() -> None:
    assert [place for module in MODULES for place in without_hint(module)] == []
    rooms = [*vars(dag_errors).values(), *vars(state_errors).values()]
    coded = {item for item in rooms if isinstance(item, type) and "CODE" in vars(item)}
    # Of those that others are made from nothing is raised.
    raised = coded - {base for item in coded for base in item.__bases__}
    assert {item.__name__ for item in raised if not item.HINT} == set()


def told(module: Path) -> str:
    """All texts of a module, those in pieces put together as far as they are known."""
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    actual = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return "\n".join(actual)


def test_every_command_that_is_named_is_there() -> None:
    texts = {name_of(module): told(module) for module in MODULES}
    pages = (LIBRARY / "capstan").rglob("*.html")
    texts |= {name_of(page): page.read_text(encoding="utf-8") for page in pages}
    named = {
        (name, command)
        for name, text in texts.items()
        for command in re.findall(r"(?:`|<code>)capstan\s+([a-z][a-z-]*)", text)
    }
    assert len(named) > 20
    known = {command.name for command in app.registered_commands}
    assert {(name, command) for name, command in named if command not in known} == set()


def test_only_one_room_imports_airflow() -> None:
    actual = [name_of(m) for m in MODULES if "airflow" in imports_of(m)]
    assert [name for name in actual if not name.startswith("capstan/airflow/")] == []


def test_only_the_session_module_builds_a_session() -> None:
    builders = [
        name_of(module)
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr == "builder"
        and isinstance(node.value, ast.Name)
        and node.value.id == "SparkSession"
    ]
    assert set(builders) == {"capstan/spark/session.py"}


def test_what_set_up_runs_first_needs_the_standard_library_alone() -> None:
    # Of an installed package, platformdirs knows the cache; a checkout has its own.
    own = {*sys.stdlib_module_names, "capstan", "platformdirs"}
    for name in (
        "errors/__init__.py",
        "telemetry/instrumentation.py",
        "spark/project_home.py",
        "spark/setup/java.py",
    ):
        assert imports_of(LIBRARY / "capstan" / name) <= own, name


def _tests_text(folder: str = "*", *, by_day: bool = False) -> str:
    """The tests of a folder; `by_day` without the files that are the night's."""
    actual = sorted((ROOT / "tests").glob(f"{folder}/**/*.py"))
    texts = [path.read_text(encoding="utf-8") for path in actual]
    night = re.compile(r"^pytestmark = .*nightly", re.MULTILINE)
    return "\n".join(text for text in texts if not (by_day and night.search(text)))


def _codes() -> set[tuple[str, str]]:
    """Codes of errors, each with the class whose `CODE` it is, or with nothing."""
    sources = {name_of(module): module.read_text(encoding="utf-8") for module in MODULES}
    text = "\n".join(sources.values())
    classes = re.findall(
        r'class (\w+)\(([\w, ]+)\):(?:(?!\nclass ).)*?\n    CODE = "(CAP-[A-Z-]+)"', text, re.S
    )
    owners = {code: owner for owner, _, code in classes}
    # Of a class that others are made from nothing is raised.
    bases = {base for _, named, _ in classes for base in named.split(", ")}
    actual = {(code, owners.get(code, "")) for code in re.findall(r'"(CAP-[A-Z0-9-]+)"', text)}
    return {(code, owner) for code, owner in actual if owner not in bases}


def test_every_code_is_in_a_test() -> None:
    text = _tests_text()
    unknown = [
        code
        for code, owner in _codes()
        if not re.search(rf"{code}(?![A-Z0-9-])", text)
        if not (owner and re.search(rf"\b{owner}\b", text))
    ]
    assert unknown == []


# Points after which nothing is written that goes on from what was, or that only tell people how
# far the work has come.
TOLD = {
    "audit.run",
    "backfill.run",
    "backfill.waits",
    "capture.begin",
    "capture.left",
    "export.files",
    "export.head",
    "export.topics",
    "import.survey",
    "listen.connected",
    "listen.disconnected",
    "listen.events",
    "listen.ready",
    "maintain.staging",
    "maintain.vacuumed",
    "replay.apart",
    "replay.verify",
    "serve.sent",
    "source.compared",
    "state.rescaled",
    "verify.deep",
    "verify.events",
}


def test_every_named_point_has_a_kill_test() -> None:
    sources = "\n".join(module.read_text(encoding="utf-8") for module in MODULES)
    points = set(re.findall(r'\bemit\(\s*f?"([a-z{}.-]+)"', sources))
    # The points of an inserted batch are named by what it is inserted for.
    returning = ("put-back", "fix")
    inserted = {
        "{origin}.claim": ("rescale", "idle", "drop", *returning),
        "{entry.origin}.records": returning,
        "{entry.origin}.events": returning,
    }
    assert inserted.keys() == {point for point in points if "{" in point}
    for point, origins in inserted.items():
        points = points - {point} | {f"{each}.{point.split('.')[-1]}" for each in origins}
    assert points >= TOLD
    # What a test of the night alone cuts off is not looked at before a change lands.
    killed = _tests_text("crash", by_day=True) + _tests_text("spark", by_day=True)
    # Points of more than one file of tests.
    killed += (ROOT / "tests" / "support" / "crash_cases.py").read_text(encoding="utf-8")
    aimed = {point for point in points if re.search(rf'"{re.escape(point)}[":]', killed)}
    assert points - aimed - TOLD == set()


def test_no_module_imports_itself_through_others() -> None:
    """Not even for types: what two modules need of each other is a third one."""
    graph = grimp.build_graph("capstan", cache_dir=None)
    sorter = TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )
    sorter.prepare()


# Where what others could share is set, and what: sessions of a call's own, the environment in which
# a JVM or a task's program starts, the run in log lines, and the SparkConf of a session to build.
STATE = {
    "capstan/spark/own_session.py": {"set", "unset", "setActiveSession", "clearActiveSession"},
    "capstan/spark/log_lines.py": {"setProperty", "setLocalProperty"},
    "capstan/spark/session.py": {"set", "environ", "setdefault"},
    "capstan/airflow/tasks/spark_program.py": {"environ", "pop"},
}
SETTERS = {
    *("setActiveSession", "clearActiveSession", "setDefaultSession", "setLogLevel"),
    *("setProperty", "setLocalProperty", "setJobGroup", "setJobDescription", "addJobTag", "addTag"),
    *("tzset", "setlocale", "putenv", "unsetenv", "chdir", "umask", "setCurrentDatabase"),
}
CHANGES = {"set", "unset", "update", "setdefault", "pop", "popitem", "clear"}


def shared_state(code: str) -> set[str]:
    """How a module sets what other calls of the process or of the session could share."""
    actual = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if ast.unparse(node.value) in ("os.environ", "environ"):
                actual.add("environ")
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            shared = node.attr in CHANGES and re.search(r"\b(conf|environ)(\(\))?$", owner)
            if node.attr in SETTERS or shared:
                actual.add(node.attr)
    return actual


def test_only_few_modules_set_what_others_share() -> None:
    setting = {name_of(module): shared_state(module.read_text("utf-8")) for module in MODULES}
    assert {name: actual for name, actual in setting.items() if actual} == STATE


@pytest.mark.parametrize(
    "line",
    [
        "spark.conf.set('a', 'b')",
        "session._jsparkSession.conf().unset('a')",
        "os.environ['TZ'] = 'UTC'",
        "del os.environ['TZ']",
        "os.environ.update(TZ='UTC')",
        "os.environ.setdefault('TZ', 'UTC')",
        "change = os.environ.pop",
        "time.tzset()",
        "jvm.java.lang.System.setProperty('a', 'b')",
        "sessions.setActiveSession(session)",
        "context.addJobTag('a')",
    ],
)
def test_a_setting_of_shared_state_is_seen(line: str) -> None:
    assert shared_state(line)
