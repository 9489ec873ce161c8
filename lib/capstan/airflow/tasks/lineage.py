"""OpenLineage facets of tasks: tables read and written, and the certificate of a replay.

Airflow's OpenLineage provider imports this module when a task has ended, in a process of its own,
if a transport is configured. It logs errors here without affecting the task. Nothing else imports
it, so DAG files and other tasks never load OpenLineage's client.

A tape is named by the path of its events, a target by its own path: `file` and the path, or
`s3://bucket` and the key, like OpenLineage's Spark integration; a target with an `asset` is named
by that URI. Rows are never sent: samples of
audits and differences are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    BaseFacet,
    DatasetFacet,
    InputDatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
)

from capstan.airflow.documents import runs_of
from capstan.core.config import ProjectConfig, split_streams
from capstan.core.json_object import Json
from capstan.replay.planning.target_places import declared_path
from capstan.replay.result import ReplayResult, RollbackResult
from capstan.reporting.formatting import number
from capstan.reporting.summaries import audit_text, check_facts
from capstan.storage.lake import Lake

Lineage = OperatorLineage[Dataset, RunFacet]

CERTIFICATE = "capstan_certificate"
"""The run facet with the certificate of a replay."""
FRONTIER = "capstan_frontier"
"""The tape's facet with the frontier after a capture."""

_OTHER_NAMES = {"s3a": "s3", "s3n": "s3"}
# In these, a path begins at a root; a key in an object store does not.
_ROOTED = frozenset({"hdfs", "viewfs"})


@define
class CertificateRunFacet(RunFacet):
    """The certificate of a replay, with the keys of `docs/protocol.md` that are not null."""

    certificate: dict[str, Any]

    @staticmethod
    def _get_schema() -> str:
        return "urn:capstan:openlineage:CertificateRunFacet:1"


@define
class FrontierDatasetFacet(DatasetFacet):
    """The frontier of a stream, a list of times as in certificates; empty when closed."""

    frontier: list[Any]

    @staticmethod
    def _get_schema() -> str:
        return "urn:capstan:openlineage:FrontierDatasetFacet:1"


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a table by a task."""

    path: str
    version: object = None  # of the table, or the cut of a tape; None if unknown
    rows: int | None = None  # read or written; None if not counted
    tests: tuple[data_quality_assertions_dataset.Assertion, ...] = ()

    def and_then(self, later: Use) -> Use:
        """Two uses of the same table, combined."""
        counted = [rows for rows in (self.rows, later.rows) if rows is not None]
        return Use(
            self.path,
            self.version if later.version is None else later.version,
            sum(counted) if counted else None,
            (*self.tests, *later.tests),
        )


def lineage(
    job: str, lake: str, result: Json | None, config: ProjectConfig | None = None
) -> Lineage:
    """The tables that a task read and wrote, from the result of its job."""
    collect = _BY_JOB.get(job)
    if collect is None or result is None:
        return OperatorLineage()
    place = Lake.at(lake)
    found = collect(place, result)
    named = {
        dataset_name(declared_path(place, name, target)): dataset_name(target.asset)
        for name, target in (config.targets if config else {}).items()
        if target.asset is not None
    }
    for dataset in (*found.inputs, *found.outputs):
        key = (dataset.namespace, dataset.name)
        dataset.namespace, dataset.name = named.get(key, key)
    return found


def of_replay(lake: Lake, result: Json) -> Lineage:
    """From the tape at its cut into the target at its version, with the certificate."""
    # A run that waits for approval wrote nothing; nor did a run that was already published, whose
    # row counts are 0.
    replay = ReplayResult.from_json(result)
    if "error" in result or replay.certificate is None:
        return OperatorLineage()
    replayed = _played(lake, [replay])
    replayed.run_facets[CERTIFICATE] = CertificateRunFacet(_without_rows(result))
    return replayed


def of_backfills(lake: Lake, result: Json) -> Lineage:
    """The same for all runs of backfills together, without their certificates."""
    results = map(ReplayResult.from_json, runs_of(result))
    return _played(
        lake, [each for each in results if each.certificate and each.certificate.published]
    )


def of_capture(lake: Lake, captured: Json) -> Lineage:
    """Into the tape, at its new cut and frontier."""
    if "error" in captured:
        return OperatorLineage()
    # The cut of a tape without commits is -1.
    version = captured["cut"] if captured["cut"] >= 0 else None
    events = lake.stream(captured["stream"]).events
    tape = _output(Use(events, version, captured["records"]))
    facet = FrontierDatasetFacet(captured["frontier"])
    tape.facets = {**(tape.facets or {}), FRONTIER: facet}
    return OperatorLineage(outputs=[tape])


def of_rollback(_: Lake, result: Json) -> Lineage:
    """Into the target, at the version with the previous rows; nothing if it was already done."""
    if "error" in result:
        return OperatorLineage()
    rollback = RollbackResult.from_json(result)
    target = Use(rollback.target_path, rollback.target_version)
    return OperatorLineage(outputs=[] if rollback.unchanged else [_output(target)])


def of_audits(lake: Lake, result: Json) -> Lineage:
    """From tapes and targets, with the audits' results; nothing is written."""
    # Audits that could not be made are left out: the task's log says why.
    audits = [audit for audit in result.get("audits", [result]) if "passed" in audit]
    tapes = [
        Use(lake.stream(stream).events, cut) for audit in audits for stream, cut in _cuts(audit)
    ]
    targets = [
        Use(str(audit["target_path"]), audit.get("version"), None, _tests(audit, audit.get("run")))
        for audit in audits
    ]
    return OperatorLineage(inputs=[_input(use) for use in _combined([*tapes, *targets])])


_BY_JOB: Mapping[str, Callable[[Lake, Json], Lineage]] = {
    "capture": of_capture,
    "replay": of_replay,
    "publish": of_replay,
    "backfill": of_backfills,
    "rollback": of_rollback,
    "audit": of_audits,
}


def dataset_name(path: str) -> tuple[str, str]:
    """The OpenLineage namespace and name of a path or URI."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return "file", rest if separator else path
    host, _, key = rest.partition("/")
    name = f"/{key}" if scheme in _ROOTED else key
    return f"{_OTHER_NAMES.get(scheme, scheme)}://{host}", name


def _played(lake: Lake, results: Iterable[ReplayResult]) -> Lineage:
    read, written = list[Use](), list[Use]()
    for result in results:
        certificate = result.certificate
        assert certificate is not None
        own = {name: getattr(certificate, name) for name in ("stream", "cut", "records")}
        # Of several streams, the certificate has a part each.
        for part in certificate.streams or [own]:
            rows = 0 if result.unchanged else part["records"]
            read.append(Use(lake.stream(part["stream"]).events, part["cut"], rows))
        for lookup in (certificate.pipeline or {}).get("lookups", ()):
            read.append(Use(lookup["path"], lookup["version"]))
        if certificate.published:
            audit = certificate.audit or {}
            rows = 0 if result.unchanged else audit.get("records")
            path, tests = certificate.target_path, _tests(audit, certificate.run)
            written.append(Use(path, certificate.target_version, rows, tests))
    return OperatorLineage(
        inputs=[_input(use) for use in _combined(read)],
        outputs=[_output(use) for use in _combined(written)],
    )


def _combined(uses: Iterable[Use]) -> Iterable[Use]:
    """One use per table, in order of first use."""
    by_path: dict[str, Use] = {}
    for use in uses:
        earlier = by_path.get(use.path)
        by_path[use.path] = use if earlier is None else earlier.and_then(use)
    return by_path.values()


def _input(use: Use) -> InputDataset:
    counted: dict[str, InputDatasetFacet] = {}
    if use.rows is not None:
        rows = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=use.rows)
        counted["inputStatistics"] = rows
    return InputDataset(*dataset_name(use.path), facets=_facets(use), inputFacets=counted)


def _output(use: Use) -> OutputDataset:
    counted: dict[str, OutputDatasetFacet] = {}
    if use.rows is not None:
        rows = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=use.rows
        )
        counted["outputStatistics"] = rows
    return OutputDataset(*dataset_name(use.path), facets=_facets(use), outputFacets=counted)


def _facets(use: Use) -> dict[str, Any]:
    facets: dict[str, BaseFacet] = {}
    if use.version is not None:
        version = str(use.version)
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version)
    if use.tests:
        # A facet of the dataset, as in Airflow's own operators, for inputs and outputs alike.
        tests = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(list(use.tests))
        facets["dataQualityAssertions"] = tests
    return facets


def _tests(audit: Json, run: object) -> tuple[data_quality_assertions_dataset.Assertion, ...]:
    """The assertions of an audit and its declared checks; none without an audit."""
    if "passed" not in audit:
        return ()
    of_run = {} if run is None else {"run": run}
    test = data_quality_assertions_dataset.Assertion
    whole = test(
        "audit",
        bool(audit["passed"]),
        severity="error",
        name="audit",
        description="The rows match the tape, and meet every check",
        actual=audit_text(audit, number),
        params=of_run,
    )
    checks = (
        test(
            "check",
            fact.met,
            severity="error",
            name=fact.name,
            description=fact.rule,
            actual=fact.text,
            params=of_run,
        )
        for fact in check_facts(audit, number)
    )
    return (whole, *checks)


def _without_rows(result: Json) -> dict[str, Any]:
    """A certificate without samples of rows, in its audit and its difference."""
    certificate = dict(result)
    for key, rows in (("audit", "findings"), ("diff", "sample")):
        part = certificate.get(key)
        if isinstance(part, Mapping):
            certificate[key] = {name: value for name, value in part.items() if name != rows}
    return certificate


def _cuts(audit: Json) -> Iterable[tuple[str, int]]:
    """The audited streams with their cuts; those of several are in the order of their sources."""
    streams, cuts = split_streams(str(audit["stream"])), audit.get("cuts")
    several = [cuts[source] for source in sorted(cuts)] if isinstance(cuts, Mapping) else []
    return zip(streams, several or [audit["cut"]], strict=True)
