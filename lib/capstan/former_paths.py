"""Former import paths: what users import under them is found where it is now, with a warning.

Lines of `_MOVED` are a former path and the module that is there now, below `capstan`. A former
package without a successor has several: its names are looked for in each, in this order.
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
airflow.ahead airflow.web.prefetch
airflow.approve airflow.operators.approve
airflow.audit airflow.dags.audit
airflow.backfill airflow.dags.backfill
airflow.capture airflow.dags.capture
airflow.certify airflow.operators.certificate
airflow.choices airflow.dags.form_choices
airflow.connection airflow.operators.spark_connection
airflow.docs airflow.dags.docs
airflow.failing airflow.operators.failures
airflow.filling airflow.web.prefilled_form
airflow.folders airflow.operators.attempt_folder
airflow.follow airflow.dags.follow
airflow.form airflow.dags.form
airflow.frontier airflow.operators.frontier_sensor
airflow.gaps airflow.dags.gaps
airflow.guard airflow.web.security
airflow.lineage airflow.operators.lineage
airflow.links airflow.operators.links
airflow.maintain airflow.dags.maintain
airflow.mistakes airflow.dags.declaration_errors
airflow.notify airflow.dags.notifications
airflow.page airflow.web.plugin
airflow.pages airflow.web.routes
airflow.plan airflow.operators.plan
airflow.replay airflow.dags.replay
airflow.resolving airflow.lake_queries
airflow.rollback airflow.dags.rollback
airflow.schedules airflow.dags.timetables
airflow.setting airflow.settings
airflow.showing airflow.markdown
airflow.sight airflow.web.permissions
airflow.spark airflow.operators.spark_operator
airflow.submit airflow.operators.submit
airflow.telemetry airflow.operators.telemetry
airflow.tries airflow.dags.task_defaults
dag pipeline
dag pipeline.engine.multicast_buffer
dag pipeline.engine.checkpoint_coordinator
dag pipeline.graph.materialized_views
dag.arrow pipeline.graph.arrow_ipc
dag.barriers pipeline.engine.barriers
dag.builder pipeline.graph.builder
dag.changelog pipeline.graph.changelog
dag.channels pipeline.engine.multicast_buffer
dag.checkpoint pipeline.engine.checkpoint
dag.checks pipeline.graph.validation
dag.coordinator pipeline.engine.checkpoint_coordinator
dag.engine pipeline.engine.scheduler
dag.errors pipeline.graph.errors
dag.event pipeline.graph.events
dag.executor pipeline.engine.executor
dag.explain pipeline.graph.explain
dag.gate pipeline.engine.source_gate
dag.graph pipeline.graph.graph
dag.metrics pipeline.engine.metrics
dag.node pipeline.engine.node
dag.operator pipeline.graph.operator
dag.operators pipeline.operators
dag.operators.aggregates pipeline.operators.aggregates
dag.operators.deduplicate pipeline.operators.deduplicate
dag.operators.joins pipeline.operators.joins
dag.operators.matching pipeline.operators.hash_join
dag.operators.order pipeline.operators.ordering
dag.operators.querying pipeline.operators.duckdb_sql
dag.operators.reducing pipeline.operators.group_reduce
dag.operators.rows pipeline.operators.stateless
dag.operators.sessions pipeline.operators.sessions
dag.operators.sql pipeline.operators.sql
dag.operators.sums pipeline.operators.exact_sums
dag.operators.timed pipeline.operators.time_buffer
dag.operators.topn pipeline.operators.top_n
dag.operators.windows pipeline.operators.windows
dag.recording pipeline.engine.sink_recorder
dag.replaying pipeline.engine.recording_bridge
dag.signature pipeline.graph.signature
dag.snapshot pipeline.engine.checkpointing
dag.stages pipeline.graph.stage_planner
dag.view pipeline.engine.executor_view
dag.views pipeline.graph.materialized_views
dag.watermarks pipeline.engine.watermarks
declare core.config
declare.checks core.config.row_checks
declare.computation core.config.transforms
declare.consistency core.config.cross_checks
declare.document core.config.yaml_document
declare.fields core.config.fields
declare.loading core.config.loader
declare.models core.config.models
declare.names core.config.names
declare.order core.config.order
declare.order.functions core.config.order.functions
declare.order.needs core.config.order.needs
declare.order.plans core.config.order.plans
declare.order.rules core.config.order.rules
declare.order.tree core.config.order.tree
declare.order.windows core.config.order.windows
declare.reading core.config.validation
declare.registry core.config.registry
declare.sql core.config.sql_rules
declare.values core.config.durations
exchange interop.transfer.export_files
exchange interop.transfer.recording_format
exchange interop.transfer.import_files
exchange interop.transfer.recapture
exchange interop.kafka.import_topics
exchange interop.kafka.export_topics
interop.capture interop.timely.capture
interop.closing interop.timely.closing
interop.codec interop.timely.codec
interop.composites interop.timely.composites
interop.encoding interop.timely.encoding
interop.event_types interop.timely.event_types
interop.events interop.timely.event_link
interop.extract interop.timely.extract
interop.files interop.timely.recording_files
interop.floats interop.timely.floats
interop.frames interop.timely.frames
interop.lines interop.timely.json_lines
interop.reader interop.timely.reader
interop.replay interop.timely.replay
interop.scalars interop.timely.scalars
interop.sockets interop.timely.sockets
interop.topics interop.kafka.topic_layout
interop.types interop.timely.type_names
interop.writer interop.timely.writer
launcher airflow.local
launcher.__main__ airflow.local.__main__
launcher.api airflow.local.api
launcher.checks airflow.local.checks
launcher.components airflow.local.components
launcher.database airflow.local.database
launcher.home airflow.local.home
launcher.launch airflow.local.launcher
launcher.processes airflow.local.processes
launcher.settings airflow.local.settings
ledger storage.ledger
ledger.tables storage.ledger.tables
protocol core.protocol
protocol.events core.protocol.events
protocol.json_text core.protocol.json_text
protocol.judge core.protocol.checker
protocol.reference core.protocol.reference_checker
protocol.rules core.protocol.rules
protocol.transcript core.protocol.transcript
replay.request replay.planning.request
runtime spark
runtime.archive spark.class_archive
runtime.home spark.project_home
runtime.jars spark.jars
runtime.java spark.java
runtime.shipping spark.code_archive
session spark.session
state pipeline
state pipeline.state.checkpoint_rescale
state pipeline.state.codec
state pipeline.live.epochs
state pipeline.state.key_hash
state pipeline.live.aligned_input
state pipeline.keyed.keyed_operator
state pipeline.state.keyed_snapshot
state pipeline.keyed.stateful_functions
state pipeline.keyed.messages
state pipeline.live.partitioned_output
state pipeline.state.key_placement
state pipeline.live.snapshot_store
state.aggregating pipeline.keyed.keyed_aggregate
state.checkpoints pipeline.state.checkpoint_rescale
state.chunks pipeline.state.chunks
state.codec pipeline.state.codec
state.dealing pipeline.state.chunk_rescale
state.epochs pipeline.live.epochs
state.errors pipeline.state.errors
state.folding pipeline.keyed.aggregate_table
state.hashing pipeline.state.key_hash
state.inputs pipeline.live.aligned_input
state.keyed pipeline.keyed.keyed_operator
state.keys pipeline.state.keyed_snapshot
state.live pipeline.live
state.live.agenda pipeline.live.agenda
state.live.alignment pipeline.live.alignment
state.live.cluster pipeline.live.cluster
state.live.coordinator pipeline.live.coordinator
state.live.distributor pipeline.live.distributor
state.live.job pipeline.live.job
state.live.rescaling pipeline.live.rescaling
state.live.routing pipeline.live.routing
state.live.wire pipeline.live.wire
state.live.worker pipeline.live.worker
state.logic pipeline.keyed.stateful_functions
state.messages pipeline.keyed.messages
state.outputs pipeline.live.partitioned_output
state.per_record pipeline.keyed.keyed_logic
state.placement pipeline.state.key_placement
state.snapshots pipeline.live.snapshot_store
state.tables pipeline.state.state_tables
submit jobs
submit.apps jobs.handlers
submit.deciding jobs.approval
submit.filling jobs.backfills
submit.program jobs.main
submit.several jobs.audit_runs
submit.training jobs.warmup
submit.undoing jobs.rollback_runs
submit.values jobs.job_types
tape storage
tape.lake storage.lake
tape.tape storage.tape.tape
times core.times
times.antichain core.times.antichain
times.box core.times.box
times.change_batch core.times.change_batch
times.coordinate core.times.coordinate
times.mutable_antichain core.times.mutable_antichain
times.region core.times.region
times.time core.times.time
times.time_type core.times.time_type
workloads demo
workloads.flight_pipelines demo.pipelines
workloads.flights demo.flights
"""
MOVED: Final[dict[str, list[str]]] = {}
"""By former path the modules that are there now."""
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
"""By module and former name the name that is there now."""
for _former, _now in map(str.split, _MOVED.strip().splitlines()):
    MOVED.setdefault(f"capstan.{_former}", []).append(f"capstan.{_now}")


def install() -> None:
    """Have `import` find former paths."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # Before others: they would look for a former path below the package that is there now.
        sys.meta_path.insert(0, _Finder())


def renamed(module: str, name: str) -> object:
    """What has another name now, in a module that is where it was.

    Raises:
        AttributeError: There is no such name.
    """
    if (module, name) not in RENAMED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    now = RENAMED[module, name]
    _warn(f"{module}.{name}", f"{module}.{now}", 3)
    found: object = getattr(importlib.import_module(module), now)
    return found


def attribute(package: str, now: str, name: str) -> object:
    """A name that has moved from a package that is still there.

    Raises:
        AttributeError: There is no such name.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(now), name)
    _warn(f"{package}.{name}", f"{now}.{name}", 3)
    return found


def _warn(former: str, now: str, level: int) -> None:
    text = f"{former} has moved to {now}; the former path goes with version 1"
    warnings.warn(text, DeprecationWarning, stacklevel=level + 1)


class _Package(ModuleType):
    """A former package: its names are those of the modules that are there now."""

    def __getattr__(self, name: str) -> object:
        if not name.startswith("__"):
            for module in MOVED[self.__name__]:
                found = importlib.import_module(module)
                now = RENAMED.get((module, name), name)
                if hasattr(found, now):
                    return getattr(found, now)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds former paths, and gives the modules that are there now."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a former path; None of any other name."""
        if fullname not in MOVED:
            return None
        if sys.modules.get(fullname) is None:
            _warn(fullname, MOVED[fullname][0], 2)
        has_more = any(name.startswith(f"{fullname}.") for name in MOVED)
        return ModuleSpec(fullname, self, is_package=has_more)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that is there now, or a package that gives what those there have."""
        if spec.submodule_search_locations is not None:
            return _Package(spec.name)
        module = importlib.import_module(MOVED[spec.name][0])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has been executed under its own name, which it keeps."""
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the module that is there now, as `python -m` asks for it."""
        now = importlib.util.find_spec(MOVED[fullname][0])
        loader = None if now is None else now.loader
        return (
            loader.get_code(now.name)
            if isinstance(loader, importlib.abc.InspectLoader) and now
            else None
        )

    def get_source(self, fullname: str) -> str | None:
        """None: it is under its own name."""
        return None

    def is_package(self, fullname: str) -> bool:
        """Whether others were below it."""
        return any(name.startswith(f"{fullname}.") for name in MOVED)
