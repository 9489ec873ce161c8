"""What tasks tell OpenLineage: which tables they read and wrote, and the certificate of a replay.

Airflow's provider asks for it when a task has ended, where a transport of its events is configured,
in a process of its own. What goes wrong here it logs, and the task is what it was. It alone has
this module imported: where nobody asks, no DAG file and no task loads OpenLineage's client.

A tape is named by the place of its events, a target by its own: `file` and the path, or such as
`s3://bucket` and the key, as OpenLineage's integration of Spark names them. Rows themselves are
never told: of audits and differences the samples are left out.
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

from capstan.reporting.formatting import number
from capstan.reporting.summaries import audit_text, check_facts
from capstan.storage.lake import Lake

Answer = Mapping[str, object]
Lineage = OperatorLineage[Dataset, RunFacet]

CERTIFICATE = "capstan_certificate"
"""The run's facet that has the certificate of a replay."""
FRONTIER = "capstan_frontier"
"""The tape's facet that has the frontier after a capture."""

_OTHER_NAMES = {"s3a": "s3", "s3n": "s3"}
# In these a path begins at a root; in object stores a key does not.
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
    """The frontier of a stream, a list of times as in certificates; empty where it is closed."""

    frontier: list[Any]

    @staticmethod
    def _get_schema() -> str:
        return "urn:capstan:openlineage:FrontierDatasetFacet:1"


@dataclass(frozen=True, slots=True)
class Use:
    """What a task has done with a table.

    Attributes:
        path: The table's path or URI.
        version: Its version, of a tape the cut; None where it is not known.
        rows: How many rows were read or written; None where nobody has counted.
        tests: What was tested of it.
    """

    path: str
    version: object = None
    rows: int | None = None
    tests: tuple[data_quality_assertions_dataset.Assertion, ...] = ()

    def and_then(self, later: Use) -> Use:
        """Both uses of the same table as one."""
        counted = [rows for rows in (self.rows, later.rows) if rows is not None]
        return Use(
            self.path,
            self.version if later.version is None else later.version,
            sum(counted) if counted else None,
            (*self.tests, *later.tests),
        )


def lineage(app: str, lake: str, answer: Answer | None) -> Lineage:
    """What a task has read and written, out of what its app has answered.

    Args:
        app: The app, by its name.
        lake: The lake's place.
        answer: What the app has answered, also where that is a refusal; None where it said nothing.
    """
    tell = _OF_APP.get(app)
    if tell is None or answer is None:
        return OperatorLineage()
    return tell(Lake.at(lake), answer)


def of_replay(lake: Lake, certificate: Answer) -> Lineage:
    """From the tape at its cut into the target at its version, with the certificate.

    What waits for a person has written nothing; what stood already neither, and its rows are 0.
    """
    if "error" in certificate or not certificate.get("stream"):
        return OperatorLineage()
    found = _played(lake, [certificate])
    found.run_facets[CERTIFICATE] = CertificateRunFacet(_without_rows(certificate))
    return found


def of_backfills(lake: Lake, answer: Answer) -> Lineage:
    """The same of all runs of backfills together, without their certificates."""
    backfills = _entries(answer.get("backfills", [answer]))
    runs = [run for each in backfills for run in _entries(each.get("runs"))]
    return _played(lake, [run for run in runs if run.get("published")])


def of_capture(lake: Lake, captured: Answer) -> Lineage:
    """Into the tape, which has a new cut and frontier."""
    if "error" in captured:
        return OperatorLineage()
    cut, frontier = captured.get("cut"), captured.get("frontier")
    # Of a tape that has no commit yet it is -1.
    version = cut if isinstance(cut, int) and cut >= 0 else None
    tape = _output(Use(_tape(lake, captured), version, _count(captured.get("records"))))
    told = FrontierDatasetFacet(frontier if isinstance(frontier, list) else [])
    tape.facets = {**(tape.facets or {}), FRONTIER: told}
    return OperatorLineage(outputs=[tape])


def of_rollback(_: Lake, answer: Answer) -> Lineage:
    """Into the target, whose version has the rows of before; nothing where it was done before."""
    if "error" in answer or answer.get("stood"):
        return OperatorLineage()
    target = Use(str(answer["target_path"]), answer["target_version"])
    return OperatorLineage(outputs=[_output(target)])


def of_audits(lake: Lake, answer: Answer) -> Lineage:
    """From tapes and targets, with what the audits have found of these; nothing is written.

    An audit that could not be made is left out: the task's log says why.
    """
    made = [each for each in _entries(answer.get("audits", [answer])) if "passed" in each]
    tapes = [Use(_tape(lake, each), each["cut"]) for each in made]
    targets = [
        Use(str(each["target_path"]), each.get("version"), None, _tests(each, each.get("run")))
        for each in made
    ]
    return OperatorLineage(inputs=[_input(each) for each in _joined([*tapes, *targets])])


_OF_APP: Mapping[str, Callable[[Lake, Answer], Lineage]] = {
    "capture": of_capture,
    "replay": of_replay,
    "publish": of_replay,
    "backfill": of_backfills,
    "rollback": of_rollback,
    "audit": of_audits,
}


def place(path: str) -> tuple[str, str]:
    """Namespace and name of what lies at a path or URI."""
    scheme, told, rest = path.partition("://")
    if not told or scheme == "file":
        return "file", rest if told else path
    host, _, inside = rest.partition("/")
    name = f"/{inside}" if scheme in _ROOTED else inside
    return f"{_OTHER_NAMES.get(scheme, scheme)}://{host}", name


def _played(lake: Lake, certificates: Iterable[Answer]) -> Lineage:
    read, written = list[Use](), list[Use]()
    for each in certificates:
        stood, audit = bool(each.get("stood")), each.get("audit")
        audit = audit if isinstance(audit, Mapping) else {}
        rows = 0 if stood else _count(each.get("records"))
        read.append(Use(_tape(lake, each), each["cut"], rows))
        if each.get("published"):
            rows = 0 if stood else _count(audit.get("records"))
            tests = _tests(audit, each.get("run"))
            written.append(Use(str(each["target_path"]), each["target_version"], rows, tests))
    return OperatorLineage(
        inputs=[_input(each) for each in _joined(read)],
        outputs=[_output(each) for each in _joined(written)],
    )


def _joined(uses: Iterable[Use]) -> Iterable[Use]:
    """One use for each table, in the order of the first ones."""
    found: dict[str, Use] = {}
    for each in uses:
        before = found.get(each.path)
        found[each.path] = each if before is None else before.and_then(each)
    return found.values()


def _input(use: Use) -> InputDataset:
    counted: dict[str, InputDatasetFacet] = {}
    if use.rows is not None:
        rows = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=use.rows)
        counted["inputStatistics"] = rows
    return InputDataset(*place(use.path), facets=_facets(use), inputFacets=counted)


def _output(use: Use) -> OutputDataset:
    counted: dict[str, OutputDatasetFacet] = {}
    if use.rows is not None:
        rows = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=use.rows
        )
        counted["outputStatistics"] = rows
    return OutputDataset(*place(use.path), facets=_facets(use), outputFacets=counted)


def _facets(use: Use) -> dict[str, Any]:
    facets: dict[str, BaseFacet] = {}
    if use.version is not None:
        version = str(use.version)
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version)
    if use.tests:
        # Where Airflow's own operators have it, of tables that are read and written alike.
        tests = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(list(use.tests))
        facets["dataQualityAssertions"] = tests
    return facets


def _tests(audit: Answer, run: object) -> tuple[data_quality_assertions_dataset.Assertion, ...]:
    """An audit and its declared checks; none where there was no audit."""
    if "passed" not in audit:
        return ()
    of_run = {} if run is None else {"run": run}
    test = data_quality_assertions_dataset.Assertion
    whole = test(
        "audit",
        bool(audit["passed"]),
        severity="error",
        name="audit",
        description="The rows are those that the tape promises, and meet every check",
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


def _without_rows(certificate: Answer) -> dict[str, Any]:
    """A certificate without samples of rows: of its audit, and of what a publish would change."""
    found = dict(certificate)
    for key, rows in (("audit", "findings"), ("diff", "sample")):
        part = found.get(key)
        if isinstance(part, Mapping):
            found[key] = {name: value for name, value in part.items() if name != rows}
    return found


def _tape(lake: Lake, answer: Answer) -> str:
    return lake.stream(str(answer["stream"])).events


def _entries(value: object) -> list[Answer]:
    found = value if isinstance(value, list) else []
    return [each for each in found if isinstance(each, Mapping)]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
