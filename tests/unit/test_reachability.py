"""Every module and public name is reached by a command, a job, Airflow or a caller."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import grimp

from capstan.core.public_names import names_of

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text("utf-8") for path in (ROOT / "lib/capstan").rglob("*.py")}
ENTRIES = ("capstan.cli", "capstan.airflow", "capstan.jobs")
PACKAGES = ("capstan", "capstan.pipeline", "capstan.pipeline.operators")
# What others call by name.
HOOKS = {
    "airflow/tasks/lake_triggers.py:serialize": "Airflow's triggerers",
    "airflow/tasks/job_operator.py:get_openlineage_facets_on_complete": "OpenLineage",
    "airflow/provider.py:provider_info": "the entry point of a provider",
    "airflow/web/plugin.py:CapstanPlugin": "the entry point of a plugin",
    "capture/query/running_query.py:onQueryIdle": "Spark's listeners",
    "capture/query/running_query.py:onQueryProgress": "Spark's listeners",
    "capture/query/running_query.py:onQueryStarted": "Spark's listeners",
    "capture/query/running_query.py:onQueryTerminated": "Spark's listeners",
    "pipeline/engine/executor.py:checkpoint_watermarks": "a method of the public executor",
    "pipeline/engine/executor.py:take_sink_outputs": "a method of the public executor",
    "pipeline/state/codec.py:register_codec": "authors of codecs; named by a hint",
    "replay/planning/request.py:of_streams": "a method of the public ReplayRequest",
    "storage/delta/small_files.py:get_type_name": "Arrow's file systems",
    "storage/delta/small_files.py:normalize_path": "Arrow's file systems",
}


def test_every_module_is_reached_from_an_entry_point() -> None:
    graph = grimp.build_graph("capstan")
    reached = {"capstan"} | {module for module in graph.modules if module.startswith(ENTRIES)}
    for package in PACKAGES:
        reached |= {module for module, _ in names_of(package).values()}
    waiting = list(reached)
    while waiting:
        for module in graph.find_modules_directly_imported_by(waiting.pop()):
            parts = module.split(".")
            packages = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
            waiting += packages - reached
            reached |= packages
    assert graph.modules - reached == set()


def public_names(path: Path) -> set[str]:
    """Functions, methods and classes of a module that no decorator registers elsewhere."""
    nodes = ast.walk(ast.parse(SOURCES[path]))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    actual = (node for node in nodes if isinstance(node, kinds) and not node.name.startswith("_"))
    by_name = ("validator", "route", "router", "command")
    return {
        n.name
        for n in actual
        if not any(k in ast.unparse(d) for d in n.decorator_list for k in by_name)
    }


def test_every_public_name_is_used_or_documented() -> None:
    templates = [page.read_text("utf-8") for page in (ROOT / "lib/capstan").rglob("*.html")]
    texts = [*SOURCES.values(), *templates]
    uses = Counter(word for text in texts for word in re.findall(r"\w+", text))
    pages = [page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")]
    documented = {word for text in pages for word in re.findall(r"\w+", text)}
    documented |= {name for package in PACKAGES for name in names_of(package)}
    unused = {
        f"{path.relative_to(ROOT / 'lib/capstan')}:{name}"
        for path in SOURCES
        for name in public_names(path)
        if uses[name] == 1 and name not in documented
    }
    assert unused == set(HOOKS)
