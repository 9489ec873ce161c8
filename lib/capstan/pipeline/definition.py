"""What a pipeline is: a registered graph of operators, what it reads, and where it writes."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from capstan.core.config import check_name
from capstan.errors import InvalidRequestError
from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.graph.signature import Signatures
from capstan.pipeline.graph.stage_planner import Plan, plan_stages
from capstan.pipeline.operators.time_buffer import Length, units
from capstan.pipeline.stored_names import stored, stored_hash

DagFunction = Callable[[], Dag | DagBuilder]
"""What a pipeline is registered with: it gives the graph, and always the same one."""

# Functions registered in Python, by `module:function`; they may lie where import cannot reach.
_registered: dict[str, Callable[..., object]] = {}


@dataclass(frozen=True, slots=True)
class Sink:
    """Where what a sink of the graph puts out goes.

    Attributes:
        node: The sink's name in the graph.
        target: The table, or None where the request names it.
        time: The column that stands for an output's time: `_time`, which then comes first, or one
            of the sink's own.
        worker: The sink's own column that has the captured worker's number, or None where rows of
            several workers meet: then all workers have to be chosen.
        grain: Ranges must be multiples of this length; None leaves them free. It is needed where
            `time` is not the time at which rows come out, but such as a window's beginning.
        keys: Columns that identify a row within a time.
    """

    node: str
    target: str | None = None
    time: str = TIME
    worker: str | None = None
    grain: Length | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table that does not change, read by a source of the graph as if it were a stream.

    Attributes:
        source: The source's name in the graph.
        function: `package.module:function`, which gives the rows as an Arrow table.
        time: Its column of the time: integers, dates or timestamps as the stream's coordinate has.
        version: What tells one edition of the rows from another; part of the pipeline's identity.
    """

    source: str
    function: str
    time: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A graph of operators that a replay may run, registered by name.

    A run over a range plays the times from `since - lookback` to before `until + lookahead`, and
    keeps the outputs whose time is in the range. So lookback has to reach from any output back to
    the first record that it depends on, and lookahead to the last one.

    Attributes:
        name: The name that requests give.
        function: `package.module:function`, which gives the graph.
        sinks: What becomes of each sink of the graph.
        description: One line for people.
        coordinate: The coordinate of the stream's time that the operators take as theirs; None
            for the only one, or `event`.
        lookback: How far before the range records are read.
        lookahead: How far after it.
        unbounded: Whether records are read from the very first one, as outputs may depend on any.
        tables: Sources that are tables; each other source is a stream.
        modules: Further modules whose source text is part of the pipeline's identity.

    Raises:
        InvalidRequestError: `CAP-NAME` for the name; `CAP-PIPELINE` for lengths that cannot be
            meant.
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

    def __post_init__(self) -> None:
        check_name("pipeline", self.name)
        if min(units(self.lookback), units(self.lookahead)) < 0:
            raise self.refusal("looks back or ahead by less than nothing")
        if any(sink.grain is not None and units(sink.grain) < 1 for sink in self.sinks):
            raise self.refusal("has a sink with a grain of nothing")
        if self.unbounded and units(self.lookback):
            raise self.refusal("is unbounded, and so has no lookback")

    def dag(self) -> Dag:
        """The graph, checked against what is said of its sources and sinks.

        Raises:
            InvalidRequestError: `CAP-PIPELINE` when the function cannot be found, gives no graph,
                or one with other sources, sinks or columns; `CAP-DAG-...` when the graph cannot be
                meant.
        """
        made = resolve(self, self.function)()
        dag = made.build() if isinstance(made, DagBuilder) else made
        if not isinstance(dag, Dag):
            raise self.refusal(f"has a function that gives {type(dag).__name__} instead of a graph")
        sinks = {dag.nodes[number].name for number in dag.sinks}
        sources = {dag.nodes[number].name for number in dag.sources}
        said = [sink.node for sink in self.sinks]
        if set(said) != sinks or len(said) != len(sinks):
            raise self.refusal(f"has the sinks {_listed(sinks)}, and declares {_listed(said)}")
        tables = [table.source for table in self.tables]
        if not set(tables) < sources or len(set(tables)) != len(tables):
            raise self.refusal(
                f"has the sources {_listed(sources)}, of which {_listed(tables)} cannot be tables"
            )
        for name in sources:
            if not dag.node(name).schema.names:
                raise self.refusal(f"does not say which columns its source {name} has")
        for sink in self.sinks:
            self._check_columns(sink, dag.node(sink.node).schema.names)
        return dag

    def plan(self, sinks: Iterable[str] | None = None) -> Plan:
        """The stages of the graph, or of the part of it that some sinks depend on.

        Raises:
            InvalidRequestError: As `dag`; `CAP-PIPELINE` when a sink is not one of its own.
        """
        chosen = None if sinks is None else [self.sink(node).node for node in sinks]
        return plan_stages(self.dag(), chosen)

    def signatures(self, sink: str) -> Signatures:
        """What the states depend on of the operators before a sink, and which tables these read.

        Raises:
            InvalidRequestError: As `plan`.
        """
        dag = self.plan([sink]).dag
        read = {dag.nodes[number].name for number in dag.sources}
        tables = {
            table.source: {
                "function": stored(table.function),
                "time": table.time,
                "version": table.version,
            }
            for table in self.tables
            if table.source in read
        }
        return {**dag.signatures, **tables}

    def sink(self, node: str) -> Sink:
        """What is declared of a sink.

        Raises:
            InvalidRequestError: `CAP-PIPELINE` when there is none of that name.
        """
        for sink in self.sinks:
            if sink.node == node:
                return sink
        known = _listed(sink.node for sink in self.sinks)
        raise self.refusal(f"has no sink {node[:80]!r}, only {known}")

    def _check_columns(self, sink: Sink, names: Sequence[str]) -> None:
        own = [name for name in names if name != TIME]
        wanted = [*sink.keys, *([] if sink.worker is None else [sink.worker])]
        wanted += [] if sink.time == TIME else [sink.time]
        for name in wanted:
            if name not in own:
                raise self.refusal(f"has no column {name} at sink {sink.node}, only {_listed(own)}")

    @property
    def code_hash(self) -> str:
        """SHA-256, in hex, of what decides the output: source text and declared settings.

        The text is that of the whole modules that have the function of the graph, those of its
        tables, and the modules that are named besides; what they import does not count.

        Raises:
            InvalidRequestError: `CAP-PIPELINE` when a function or a source text cannot be found.
        """
        functions = [self.function, *(table.function for table in self.tables)]
        modules = {inspect.unwrap(resolve(self, each)).__module__ for each in functions}
        settings = {
            "code": {stored(name): _text(self, name) for name in sorted({*modules, *self.modules})},
            "function": stored(self.function),
            "coordinate": self.coordinate,
            "lookback": units(self.lookback),
            "lookahead": units(self.lookahead),
            "unbounded": self.unbounded,
            "sinks": [[s.node, s.time, s.worker, *s.keys] for s in self.sinks],
            "tables": [[t.source, stored(t.function), t.time, t.version] for t in self.tables],
        }
        found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return stored_hash(found)

    def refusal(self, what: str) -> InvalidRequestError:
        """The error of a pipeline that cannot be meant; `what` follows its name."""
        return InvalidRequestError(
            "CAP-PIPELINE",
            f"pipeline {self.name} {what}",
            "mend its declaration; `capstan explain` shows its graph",
            pipeline=self.name,
        )


def register(reference: str, function: Callable[..., object]) -> None:
    """Make `resolve` find `function` under `reference` without importing it."""
    _registered[reference] = function


def resolve(pipeline: Pipeline, reference: str) -> Callable[..., object]:
    """The function that a registered pipeline names as `package.module:function`.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` when it cannot be imported, or is not a function.
    """
    if reference in _registered:
        return _registered[reference]
    module, _, name = reference.partition(":")
    try:
        found: object = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise pipeline.refusal(f"names {reference}, which cannot be imported: {error}") from error
    if not callable(found):
        raise pipeline.refusal(f"names {reference}, which is not a function")
    return found


def _text(pipeline: Pipeline, module: str) -> str:
    try:
        return inspect.getsource(importlib.import_module(module))
    except (ImportError, OSError, TypeError) as error:
        raise pipeline.refusal(f"uses module {module}, which has no source to hash") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
