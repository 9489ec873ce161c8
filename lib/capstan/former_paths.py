"""Shims for former import paths: imports are redirected to the new modules, with a warning.

An entry of `_MOVED` is either `former: new ...`, for a package and the modules that now define its
names, in order of lookup; or `former.* new.*: name former_name=new_name ...`, for the modules of a
package. Paths are relative to `capstan`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Final

_MOVED: Final = """
airflow.* airflow.*: choices=worker_labels resolving=lake_queries setting=settings
  showing=markdown
airflow.* airflow.dags.*: audit backfill capture docs follow form gaps
  maintain mistakes=declaration_errors notify=notifications replay rollback schedules=timetables
  tries=task_defaults
airflow.* airflow.operators.*: approve certify=certificate connection=spark_connection
  failing=failures folders=attempt_folder frontier=frontier_sensor lineage links plan
  spark=spark_operator submit telemetry
airflow.* airflow.web.*: ahead=prefetch filling=prefilled_form guard=security page=plugin
  pages=routes sight=permissions
dag: pipeline pipeline.engine.multicast_buffer pipeline.engine.checkpoint_coordinator
  pipeline.graph.materialized_views
dag.* pipeline.*: operators
dag.* pipeline.engine.*: barriers channels=multicast_buffer checkpoint
  coordinator=checkpoint_coordinator engine=scheduler executor gate=source_gate metrics node
  recording=sink_recorder replaying=recording_bridge snapshot=checkpointing view=executor
  watermarks
dag.* pipeline.graph.*: arrow=arrow_ipc builder changelog checks=validation errors event=events
  explain graph operator signature stages=stage_planner views=materialized_views
dag.operators.* pipeline.operators.*: aggregates deduplicate joins matching=hash_join
  order=ordering querying=duckdb_sql reducing=group_reduce rows=stateless sessions sql
  sums=exact_sums timed=time_buffer topn=top_n windows
declare: core.config
declare.* core.config.*: checks=row_checks computation=transforms consistency=cross_checks
  document=yaml_document fields loading=loader models names order reading=validation registry
  sql=sql_rules values=durations
declare.order.* core.config.order.*: functions needs plans rules tree windows
exchange: interop.transfer.export_files interop.transfer.recording_format
  interop.transfer.import_files interop.transfer.recapture interop.kafka.import_topics
  interop.kafka.export_topics
interop.* interop.kafka.*: topics=topic_layout
interop.* interop.timely.*: capture closing codec composites encoding event_types
  events=event_link extract files=recording_files floats frames lines=json_lines reader replay
  scalars sockets types=type_names writer
launcher: airflow.local
launcher.* airflow.local.*: __main__ api checks=settings components database home
  launch=launcher processes settings
ledger: storage.ledger
ledger.* storage.ledger.*: tables
protocol: core.protocol
protocol.* core.protocol.*: events json_text=transcript judge=checker reference=checker rules
  transcript
replay.* replay.planning.*: request
runtime: spark
runtime.* spark.*: archive=class_archive home=project_home jars java shipping=code_archive
session: spark.session
state: pipeline pipeline.state.codec pipeline.live.epochs
  pipeline.state.key_hash pipeline.live.aligned_input pipeline.keyed.keyed_operator
  pipeline.state.keyed_snapshot pipeline.keyed.stateful_functions pipeline.keyed.messages
  pipeline.live.partitioned_output pipeline.state.key_placement pipeline.live.snapshot_store
state.* pipeline.*: live
state.* pipeline.keyed.*: aggregating=keyed_aggregate folding=aggregate_table keyed=keyed_operator
  logic=stateful_functions messages per_record=keyed_logic
state.* pipeline.live.*: epochs inputs=aligned_input outputs=partitioned_output
  snapshots=snapshot_store
state.* pipeline.state.*: chunks codec dealing=chunk_rescale errors
  hashing=key_hash keys=keyed_snapshot placement=key_placement tables=state_tables
state.live.* pipeline.live.*: agenda alignment cluster coordinator distributor job rescaling
  routing wire worker
submit: jobs
submit.* jobs.*: apps=handlers deciding=handlers filling=handlers program=main several=audit_runs
  training=warmup undoing=rollback_runs values=job_types
tape: storage
tape.* storage.*: lake
tape.* storage.tape.*: tape
times: core.times
times.* core.times.*: antichain box change_batch coordinate mutable_antichain region time
  time_type
workloads: demo
workloads.* demo.*: flight_pipelines=pipelines flights
"""
MOVED: Final[dict[str, list[str]]] = {}
"""The new modules by former path."""
RENAMED: Final = {
    ("capstan.core.config", "Declarations"): "ProjectConfig",
    ("capstan.core.config", "load"): "load_config",
    ("capstan.core.protocol", "Judge"): "StreamChecker",
    ("capstan.core.protocol", "judge_all"): "check_all",
    ("capstan.errors", "AnswerIsNo"): "CheckFailedError",
    ("capstan.errors", "BadRequest"): "InvalidRequestError",
    ("capstan.errors", "Broken"): "SystemFailureError",
    ("capstan.errors", "Fenced"): "FencedError",
    ("capstan.errors", "Held"): "RangeLockedError",
    ("capstan.errors", "Named"): "CodedError",
    ("capstan.errors", "NotComplete"): "IncompleteError",
}
"""The new name by module and former name."""
for _entry in _MOVED.strip().replace("\n  ", " ").splitlines():
    _packages, _, _names = _entry.partition(": ")
    _former, _, _new = _packages.replace("*", "").partition(" ")
    if not _new:
        MOVED[f"capstan.{_former}"] = [f"capstan.{_name}" for _name in _names.split()]
        continue
    for _before, _, _after in (_name.partition("=") for _name in _names.split()):
        MOVED[f"capstan.{_former}{_before}"] = [f"capstan.{_new}{_after or _before}"]


def install() -> None:
    """Register the finder of former paths with `import`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First, because other finders would look for a former path below the new package.
        sys.meta_path.insert(0, _Finder())


def renamed(module: str, name: str) -> object:
    """An attribute under its former name, in a module that has not moved.

    Raises:
        AttributeError: When the module never had that name.
    """
    if (module, name) not in RENAMED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new_name = RENAMED[module, name]
    _warn(f"{module}.{name}", f"{module}.{new_name}", 3)
    value: object = getattr(importlib.import_module(module), new_name)
    return value


def attribute(package: str, new_module: str, name: str) -> object:
    """An attribute that has moved out of a package which still exists.

    Raises:
        AttributeError: When the new module has no such attribute.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(new_module), name)
    _warn(f"{package}.{name}", f"{new_module}.{name}", 3)
    return value


def _warn(former: str, new: str, level: int) -> None:
    text = f"{former} has moved to {new}; the former path will be removed in version 1"
    warnings.warn(text, DeprecationWarning, stacklevel=level + 1)


class _Package(ModuleType):
    """A former package; attribute lookup goes to the new modules."""

    def __getattr__(self, name: str) -> object:
        if not name.startswith("__"):
            for new_path in MOVED[self.__name__]:
                module = importlib.import_module(new_path)
                new_name = RENAMED.get((new_path, name), name)
                if hasattr(module, new_name):
                    return getattr(module, new_name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finder and loader that maps former paths to the new modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a former path; None for any other name."""
        if fullname not in MOVED:
            return None
        if sys.modules.get(fullname) is None:
            _warn(fullname, MOVED[fullname][0], 2)
        return ModuleSpec(fullname, self, is_package=self.is_package(fullname))

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The new module, or a `_Package` that looks names up in the new modules."""
        if spec.submodule_search_locations is not None:
            return _Package(spec.name)
        module = importlib.import_module(MOVED[spec.name][0])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec; the module was already executed under its new name."""
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the new module, for `python -m`."""
        spec = importlib.util.find_spec(MOVED[fullname][0])
        if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
            return None
        return spec.loader.get_code(spec.name)

    def get_source(self, fullname: str) -> str | None:
        """None; the source belongs to the new module."""
        return None

    def is_package(self, fullname: str) -> bool:
        """Whether other former paths are below this one."""
        return any(name.startswith(f"{fullname}.") for name in MOVED)
