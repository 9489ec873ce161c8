"""Definition of a pipeline: a registered graph of operators, its inputs, and its outputs."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from capstan.core.config import check_name
from capstan.errors import InvalidRequestError
from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.graph.signature import Signatures
from capstan.pipeline.graph.stage_planner import StagePlan, plan_stages
from capstan.pipeline.lookup import Lookup
from capstan.pipeline.operators.time_buffer import Length, units
from capstan.pipeline.stored_names import stored, stored_hash

DagFunction = Callable[[], Dag | DagBuilder]
"""A function that is registered as a pipeline; it must always return the same graph."""

# Functions registered in Python, by `module:function`; an import may not reach them.
_registered: dict[str, Callable[..., object]] = {}


@dataclass(frozen=True, slots=True)
class Sink:
    """The destination of a sink's output.

    Attributes:
        node: Name of the sink in the graph.
        target: The target table, or None when the request names it.
        time: Column with the time of an output: `_time`, which then comes first, or a column of the
            sink.
        worker: Column of the sink with the number of the captured worker; None when rows combine
            several workers, so that all workers must be chosen.
        grain: Ranges must be multiples of this length; None for any range. Required when `time` is
            not the time at which rows are emitted, but for example the start of a window.
        keys: Columns that identify a row within a time.
        worker_source: Source of the stream whose worker `worker` is: a row depends on the records
            of that worker there, and on those of all workers of other streams. None when it
            depends on the records of that worker alone, in each stream.
    """

    node: str
    target: str | None = None
    time: str = TIME
    worker: str | None = None
    grain: Length | None = None
    keys: tuple[str, ...] = ()
    worker_source: str | None = None


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table without changes that a source of the graph reads like a stream.

    Attributes:
        source: Name of the source in the graph.
        function: `package.module:function`, which returns the rows as an Arrow table.
        time: Its time column: integers, dates or timestamps, like the stream's coordinate.
        version: Distinguishes editions of the rows; part of the pipeline's identity.
    """

    source: str
    function: str
    time: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A named graph of operators that replays can run.

    A run over a range reads the times from `since - lookback` to before `until + lookahead`, and
    keeps the outputs whose time is in the range. So lookback must reach from any output back to the
    first record that it depends on, and lookahead to the last one.

    Attributes:
        name: Name in requests.
        function: `package.module:function`, which returns the graph.
        sinks: Destinations of the graph's sinks.
        description: One line for people.
        coordinate: Coordinate of the stream's time that the operators use; None for the only one,
            or `event`.
        lookback: How far before the range records are read.
        lookahead: How far after the range records are read.
        unbounded: Whether all records from the first one are read, because outputs may depend on
            any.
        tables: Sources that are tables; all other sources are streams.
        modules: Further modules whose source text is part of the pipeline's identity.
        lookups: Delta tables that complete the records of sources, in the order in which they do.
        engine_share: Share of the records, or of the keys, whose rows audits compute again in the
            engine, where Spark has computed them from more than 100,000 records, and of the records
            that they then compare with the tape's index; 1 for all.

    Raises:
        InvalidRequestError: `CAP-NAME` for the name; `CAP-PIPELINE` for invalid lengths. Methods
            raise `CAP-PIPELINE` when a function or its source text is missing, when it returns no
            graph, or one with other sources, sinks or columns, and for an unknown sink;
            `CAP-DAG-...` when the graph is invalid.
    """

    name: str
    function: str
    sinks: tuple[Sink, ...]
    description: str = ""
    coordinate: str | None = None
    lookback: Length = 0
    lookahead: Length = 0
    unbounded: bool = False
    tables: tuple[SideTable, ...] = ()
    modules: tuple[str, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    engine_share: float = 0.02

    def __post_init__(self) -> None:
        check_name("pipeline", self.name)
        names = [lookup.name for lookup in self.lookups]
        if len(set(names)) != len(names):
            raise self.refusal(f"has several lookups of one name: {_listed(names)}")
        for lookup in self.lookups:
            if lookup.problem is not None:
                raise self.refusal(f"has lookup {lookup.name}, which {lookup.problem}")
        if min(units(self.lookback), units(self.lookahead)) < 0:
            raise self.refusal("has a negative lookback or lookahead")
        if any(sink.grain is not None and units(sink.grain) < 1 for sink in self.sinks):
            raise self.refusal("has a sink with a grain of less than one unit")
        if not 0 < self.engine_share <= 1:
            raise self.refusal(f"has the engine_share {self.engine_share}, not one above 0 up to 1")
        if self.unbounded and units(self.lookback):
            raise self.refusal("is unbounded and has a lookback; remove one of them")

    def dag(self) -> Dag:
        """Build the graph and check it against the declared sources and sinks."""
        result = resolve(self, self.function)()
        dag = result.build() if isinstance(result, DagBuilder) else result
        if not isinstance(dag, Dag):
            raise self.refusal(f"has a function that returns {type(dag).__name__}, not a graph")
        problem = next(self._problems(dag), None)
        if problem is not None:
            raise self.refusal(problem)
        return dag

    def plan(self, sinks: Iterable[str] | None = None) -> StagePlan:
        """Plan the stages of the graph, or of the part of it that some sinks depend on."""
        chosen = None if sinks is None else [self.sink(node).node for node in sinks]
        return plan_stages(self.dag(), chosen)

    def signatures(self, sink: str) -> Signatures:
        """Return the signatures of the operators upstream of a sink, and of the tables they read.

        The version of a lookup does not count: runs that continue from one another may differ.
        """
        dag = self.plan([sink]).dag
        sources = {dag.nodes[number].name for number in dag.sources}
        tables = {
            table.source: {
                "function": stored(table.function),
                "time": table.time,
                "version": table.version,
            }
            for table in self.tables
            if table.source in sources
        }
        lookups: dict[str, dict[str, str]] = {}
        for lookup in self.lookups:
            if lookup.source in sources:
                text = json.dumps(lookup.settings, sort_keys=True)
                lookups.setdefault(lookup.source, {})[f"lookup {lookup.name}"] = text
        return {**dag.signatures, **tables, **lookups}

    def sink(self, node: str) -> Sink:
        """Return the declaration of a sink."""
        for sink in self.sinks:
            if sink.node == node:
                return sink
        known = _listed(sink.node for sink in self.sinks)
        raise self.refusal(f"has no sink {node[:80]!r}, only {known}")

    def _problems(self, dag: Dag) -> Iterator[str]:
        """What does not fit between the declaration and its graph."""
        sinks = {dag.nodes[number].name for number in dag.sinks}
        sources = {dag.nodes[number].name for number in dag.sources}
        declared = [sink.node for sink in self.sinks]
        if set(declared) != sinks or len(declared) != len(sinks):
            yield f"has the sinks {_listed(sinks)}, but declares {_listed(declared)}"
        tables = [table.source for table in self.tables]
        if not set(tables) < sources or len(set(tables)) != len(tables):
            yield f"has the sources {_listed(sources)}; its tables cannot be {_listed(tables)}"
        for name in sources:
            if not dag.node(name).schema.names:
                yield f"does not declare the columns of its source {name}"
        streams = sources - set(tables)
        for lookup in self.lookups:
            if lookup.source not in streams:
                stream = f"{lookup.source[:80]!r}"
                yield f"has no stream at {stream}, which lookup {lookup.name} completes"
            columns = dag.node(lookup.source).schema.names
            for name in [name for name in lookup.names if name not in columns]:
                at = f"of lookup {lookup.name} at its source {lookup.source}"
                yield f"does not declare column {name} {at}"
        for sink in self.sinks:
            yield from _sink_problems(sink, dag.node(sink.node).schema.names, streams)

    @property
    def code_hash(self) -> str:
        """SHA-256, in hex, of everything that decides the output: source text and settings.

        It covers the whole source text of the modules that define the graph's function, those of
        its tables, and the modules listed in `modules`. Modules that these import do not count.
        """
        functions = [self.function, *(table.function for table in self.tables)]
        modules = {inspect.unwrap(resolve(self, f)).__module__ for f in functions}
        settings: dict[str, object] = {
            "code": {stored(name): _text(self, name) for name in sorted({*modules, *self.modules})},
            "function": stored(self.function),
            "coordinate": self.coordinate,
            "lookback": units(self.lookback),
            "lookahead": units(self.lookahead),
            "unbounded": self.unbounded,
            "sinks": [[s.node, s.time, s.worker, *s.keys] for s in self.sinks],
            "tables": [[t.source, stored(t.function), t.time, t.version] for t in self.tables],
        }
        workers = {s.node: s.worker_source for s in self.sinks if s.worker_source is not None}
        if workers:  # Without them, the hash is as it was before they existed.
            settings["worker_sources"] = workers
        if self.lookups:
            settings["lookups"] = [[each.settings, each.version] for each in self.lookups]
        code_hash = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return stored_hash(code_hash)

    def refusal(self, problem: str) -> InvalidRequestError:
        """Create the error of an invalid pipeline; `problem` follows its name in the message."""
        return InvalidRequestError(
            "CAP-PIPELINE",
            f"pipeline {self.name} {problem}",
            "fix its declaration; `capstan explain` shows its graph",
            pipeline=self.name,
        )


def _sink_problems(sink: Sink, names: Iterable[str], streams: Collection[str]) -> Iterator[str]:
    columns = {name for name in names if name != TIME}
    required = [*sink.keys, sink.worker, None if sink.time == TIME else sink.time]
    for name in required:
        if name is not None and name not in columns:
            yield f"has no column {name} at sink {sink.node}, only {_listed(columns)}"
    source = sink.worker_source
    if source is not None and sink.worker is None:
        yield f"has no worker at sink {sink.node}, but the worker's source"
    if source is not None and source not in streams:
        yield f"has no stream {source} for the workers of {sink.node}: {_listed(streams)}"


def register(reference: str, function: Callable[..., object]) -> None:
    """Make `resolve` find `function` under `reference` without importing it."""
    _registered[reference] = function


def resolve(pipeline: Pipeline, reference: str) -> Callable[..., object]:
    """Return the function that a registered pipeline names as `package.module:function`."""
    if reference in _registered:
        return _registered[reference]
    module, _, name = reference.partition(":")
    try:
        function: object = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise pipeline.refusal(f"names {reference}, which cannot be imported: {error}") from error
    if not callable(function):
        raise pipeline.refusal(f"names {reference}, which is not a function")
    return function


def _text(pipeline: Pipeline, module: str) -> str:
    try:
        return inspect.getsource(importlib.import_module(module))
    except (ImportError, OSError, TypeError) as error:
        raise pipeline.refusal(f"uses module {module}, which has no source to hash") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
