"""The feed, and the source held against the tape: files that were changed, or are gone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import orc, parquet

from capstan.capture.query.source_reconciliation import SourceDifference, reconcile
from capstan.capture.run import capture, put_back
from capstan.capture.source.files.listing import SkippedFiles
from capstan.core.config import (
    ByColumn,
    ByKey,
    ByPartition,
    EpochTime,
    EventTime,
    Mode,
    ProjectConfig,
    Source,
    Stream,
)
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.verify import verify
from tests.support.sample_streams import START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


Made = tuple[Lake, "Stream", "Path"]


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A stream of 13 batches with a late record, one that was put back, and one that waits."""
    root = tmp_path_factory.mktemp("made")
    lake, source = Lake.at(root / "lake"), root / "source"
    for number in range(12):
        lay(source, f"part {number}", rows(range(10 * number, 10 * number + 10)))
    lay(source, "part 12", [(500, "a", START, 1, "late"), (501, None, START, 1, "no place")])
    stream = little_stream(source)
    capture(spark, lake, stream)
    put_back(spark, lake, "little")
    lay(source, "later", rows(range(120, 130)))
    return lake, stream, source


@pytest.mark.parametrize("recursive", ["true", "false"])
def test_a_copied_lake_goes_on_where_its_files_were(
    spark: SparkSession, tmp_path: Path, recursive: str
) -> None:
    def declared_at(source: Path) -> Stream:
        stream = little_stream(source)
        options = {**stream.source.options, "recursiveFileLookup": recursive}
        return replace(stream, source=replace(stream.source, options=options))

    root, copy = tmp_path / "root", tmp_path / "copy"
    lake = Lake.at(root / "lake")
    lay(root / "source", "one", rows(range(10)))
    capture(spark, lake, declared_at(root / "source"))
    # As `cp -r` does, with other times of modification.
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    lay(copy / "source", "two", rows(range(10, 20)))
    copied = Lake.at(copy / "lake")
    with pytest.raises(InvalidRequestError, match="CAP-SOURCE-MOVED") as caught:
        capture(spark, copied, declared_at(copy / "source"))
    places = {"path": str(copy / "source"), "former": str(root / "source")}
    assert caught.value.fields == {"stream": "little", **places}
    assert newest_cut(open_tape(copied, "little")).batch == 0
    # The hint is what helps; also with a link, after a move.
    shutil.move(root / "source", root / "moved")
    (root / "source").symlink_to(root / "moved")
    lay(root / "moved", "two", rows(range(10, 20)))
    assert capture(spark, copied, declared_at(root / "source")).fed == 10
    assert capture(spark, lake, declared_at(root / "source")).fed == 10


def test_a_copied_lake_and_table_go_on_by_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """A position in a Delta table is its version, wherever the table is."""

    def declared_at(source: Path) -> Stream:
        return replace(little_stream(source), source=Source(format="delta", path=str(source)))

    root, copy = tmp_path / "root", tmp_path / "copy"
    lay(tmp_path / "files", "one", rows(range(10)))
    lay(tmp_path / "files", "two", rows(range(10, 20)))
    files = [str(tmp_path / "files" / f"{name}.parquet") for name in ("one", "two")]
    write_deltalake(root / "source", parquet.read_table(files[0]))
    capture(spark, Lake.at(root / "lake"), declared_at(root / "source"))
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    write_deltalake(copy / "source", parquet.read_table(files[1]), mode="append")
    copied = Lake.at(copy / "lake")
    assert capture(spark, copied, declared_at(copy / "source")).fed == 10
    assert capture(spark, copied, declared_at(copy / "source")).fed == 0


def test_all_that_was_consumed_is_there(spark: SparkSession, made: Made) -> None:
    lake, stream, _ = made
    tape = open_tape(lake, "little")
    for deep in (False, True):
        actual = reconcile(spark, tape, stream, deep=deep)
        assert actual.differing == 0
        # What was put back was fed in the batch that brought it late, and counts there alone.
        assert (actual.batches, actual.records, actual.gone, actual.unknown) == (13, 122, 0, 0)
        parts = (actual.on_tape, actual.dead, actual.returned, actual.missing, actual.extra)
        assert (actual.in_source, *parts) == (122, 120, 1, 1, 0, 0)
    # What came since is no difference, and is not on tape.
    assert (actual.agrees, actual.unread) == (False, 1)
    assert actual.passed is not None
    assert actual.passed.files == {"unread": ["later.parquet"]}
    # Spark writes its list of files anew now and then; each batch still names its own.
    files = pl.read_delta(tape.paths.feed).sort("batch")["files"].drop_nulls()
    names = [[path.rpartition("/")[2] for path in file] for file in files]
    assert names == [[f"part%20{number}.parquet"] for number in range(13)]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_what_a_source_leaves_out_is_not_missing(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    lines = {
        "csv": "id,amount\na,1\nb,many\nc,3\nd,4,x,y\n",
        "json": '{"id":"a","amount":1}\n{"id":"b","amount":"x"}\n{"id":"c","amount":3}\n{"id":"d',
    }
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / f"a.{kind}").write_text(lines[kind], encoding="utf-8")
    stream = Stream(
        name="dropping",
        source=Source(
            format=kind,
            path=str(tmp_path / "src"),
            schema="id STRING, amount INT",
            options={"mode": "DROPMALFORMED", "header": "true"},
        ),
        workers=ByKey(("id",), 1),
        time=EpochTime(),
    )
    lake = Lake.at(tmp_path / "lake")
    capture(spark, lake, stream)
    for deep in (False, True):
        actual = reconcile(spark, open_tape(lake, "dropping"), stream, deep=deep)
        assert (actual.agrees, actual.records) == (True, 2)


JSON = [
    '{"id":"a","at":"2024-05-20T10:00:00Z","qty":1}',
    '{"id":"b","at":"2024-05-20T10:01:00Z","qty":"many"}',
    '{"id":"c","at":"2024-05-20T10:02:00Z","q',
    '{"id":"d","at":"2024-05-20T10:03:00Z"}',
    "nothing at all",
    '{"id":"e","at":"2024-05-20T10:04:00Z","qty":null}',
]
CSV = [
    "a,2024-05-20T10:00:00Z,1",
    "b,2024-05-20T10:01:00Z,many",
    "c,never,2",
    "d,2024-05-20T10:03:00Z",
    "x,2024-05-20T10:03:00Z,1,2",
    '"e",2024-05-20T10:04:00Z,',
]


@pytest.mark.parametrize(
    ("kind", "lines", "options"),
    [("json", JSON, {}), ("csv", ["id,at,qty", *CSV], {"header": "true"}), ("csv", CSV, {})],
    ids=["json", "csv", "csv without a header"],
)
def test_what_does_not_parse_is_kept_as_it_was(
    spark: SparkSession, tmp_path: Path, kind: str, lines: list[str], options: dict[str, str]
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / f"a.{kind}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    stream = Stream(
        name="text",
        source=Source(
            format=kind,
            path=str(tmp_path / "src"),
            schema="id STRING, at TIMESTAMP, qty INT",
            options=options,
        ),
        workers=ByColumn("id"),
        time=EventTime(column="at", every=timedelta(hours=1), lateness=timedelta(0)),
    )
    lake = Lake.at(tmp_path / "lake")
    done = capture(spark, lake, stream)
    assert (done.records, done.late) == (3, {"malformed": 3})
    tape = open_tape(lake, "text")
    late = pl.read_delta(tape.paths.late)
    wrong = (1, 2, 4)
    assert sorted(late["raw"]) == sorted(([*lines[1:]] if options else lines)[n] for n in wrong)
    assert sorted(pl.read_delta(tape.paths.records)["data"].struct.field("id")) == ["a", "d", "e"]
    # Whose whole record did not parse opens no worker.
    assert sorted(pl.read_delta(tape.paths.workers)["label"]) == ["a", "d", "e"]
    for deep in (False, True):
        actual = reconcile(spark, tape, stream, deep=deep)
        assert (actual.agrees, actual.records) == (True, 6)


def test_undeclared_columns_and_corrupt_text_are_handled(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.json").write_text('{"id":"a","qty":1}\n{"id":"b\n', encoding="utf-8")
    inferred = Stream(
        name="inferred",
        source=Source(format="json", path=str(tmp_path / "src")),
        workers=ByKey(("id",), 1),
        time=EpochTime(),
    )
    own = replace(
        inferred,
        name="own",
        source=replace(inferred.source, schema="id STRING, qty INT, _corrupt_record STRING"),
    )
    lake = Lake.at(tmp_path / "lake")
    assert capture(spark, lake, inferred).late == {"malformed": 1}
    assert capture(spark, lake, own).late == {}
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.json").write_text("nothing at all\n", encoding="utf-8")
    none = replace(inferred, source=replace(inferred.source, path=str(tmp_path / "none")))
    with pytest.raises(
        InvalidRequestError, match="CAP-MALFORMED: no record of the source's files parses"
    ):
        capture(spark, Lake.at(tmp_path / "other"), none)
    text = pl.read_delta(lake.stream("own").records)["data"].struct.field("_corrupt_record")
    assert sorted(text.drop_nulls()) == ['{"id":"b']


def test_names_of_any_kind_are_names(spark: SparkSession, tmp_path: Path) -> None:
    """What Delta takes goes the whole way, beside the names that declarations have."""
    strange = ["id", "at", "a`b", "a.b", "select", "ä-1"]
    hours = [(n, f"2024-05-01T0{n}:00:00Z", "x", n, n, n) for n in range(4)]
    spark.createDataFrame(hours, strange).write.parquet(str(tmp_path / "src"))
    stream = Stream(
        name="strange",
        source=Source(format="parquet", path=str(tmp_path / "src")),
        workers=ByKey(("id",), 2),
        time=EventTime(column="at", every=timedelta(hours=1), lateness=timedelta(0)),
    )
    lake = Lake.at(tmp_path / "lake")
    capture(spark, lake, stream)
    known = ProjectConfig(Path("x.yaml"), {"strange": stream}, {}, {}, {})
    done = replay(spark, lake, known, Request("strange", "copy", partial=True))
    assert (done.certificate.published, done.certificate.records) == (True, 3)
    merged = Request("strange", "merged", partial=True, mode=Mode.MERGE, keys=("id",))
    assert replay(spark, lake, known, merged).certificate.published is True
    assert reconcile(spark, open_tape(lake, "strange"), stream, deep=True).agrees


def test_a_record_that_the_tape_lost(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    shutil.copytree(made[0].root, tmp_path / "lake")
    tape = open_tape(Lake.at(tmp_path / "lake"), "little")
    spark.sql(f"DELETE FROM delta.`{tape.paths.records}` WHERE data.id = 55")
    spark.sql(f"UPDATE delta.`{tape.paths.late}` SET data.amount = 77 WHERE data.id = 500")
    actual = reconcile(spark, tape, made[1], deep=True)
    assert actual.findings == (
        SourceDifference(5, None, "missing", 10, 9),
        SourceDifference(12, None, "changed", 2, 2),
    )


def test_files_that_were_changed_or_are_gone(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    lake, stream, source = made
    shutil.copytree(source, tmp_path / "kept")
    tape = open_tape(lake, "little")
    lay(source, "part 1", rows(range(10, 22)))
    lay(source, "part 2", rows(range(20, 27)))
    lay(source, "part 3", rows(range(930, 940)))
    (source / "part 4.parquet").unlink()

    actual = reconcile(spark, tape, stream)
    assert actual.findings == (
        SourceDifference(1, None, "missing", 12, 10),
        SourceDifference(2, None, "extra", 7, 10),
    )
    assert (actual.batches, actual.gone, actual.differing) == (12, 1, 2)
    # What one batch lacks is not made up for by what another has too much.
    assert (actual.missing, actual.extra) == (2, 3)
    assert not actual.agrees

    actual = reconcile(spark, tape, stream, deep=True)
    assert [(finding.batch, finding.kind) for finding in actual.findings] == [
        (1, "missing"),
        (2, "extra"),
        (3, "changed"),
    ]
    shutil.rmtree(source)
    shutil.copytree(tmp_path / "kept", source)


def test_a_source_that_does_not_count_is_refused_by_name(
    spark: SparkSession, lake: Lake, source: Path, tmp_path: Path
) -> None:
    lay(source, "0", rows(range(10)))
    table = str(tmp_path / "table")
    spark.read.parquet(str(source)).write.format("delta").save(table)
    stream = little_stream(source, source=Source(format="delta", path=table))
    capture(spark, lake, stream)
    with pytest.raises(InvalidRequestError, match="CAP-NO-FEED.*neither files nor offsets"):
        reconcile(spark, open_tape(lake, "little"), stream)
    recapture(spark, lake, RecaptureRequest("little", "copy"))
    with pytest.raises(InvalidRequestError, match="CAP-NO-FEED: stream copy has no record"):
        reconcile(spark, open_tape(lake, "copy"), stream)
    # It says itself where it stands, and the feed keeps that.
    assert "reservoirVersion" in pl.read_delta(lake.stream("little").feed)["detail"][0]


class TestListing:
    """Each file that a listing has is read, once, or counted by the reason why not."""

    def test_each_is_read_however_old_and_however_deep(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        stream = little_stream(source)
        for number, name in enumerate(["new", "copied", "2024/05/deep", "_export", "newer"]):
            path = source / name
            moment = datetime(2001, 9, 9, tzinfo=UTC) if name == "copied" else None
            lay(path.parent, path.name, rows(range(10 * number, 10 * number + 10)), moment)
            (source / "gone.parquet").unlink(missing_ok=True)
            (source / "gone.parquet").symlink_to(source.parent / "nothing.parquet")
            actual = capture(spark, lake, stream)
        reported = {"dangling": ["gone.parquet"], "hidden": ["_export.parquet"]}
        assert actual.passed is not None
        assert actual.passed.files == reported
        tape = open_tape(lake, "little")
        ids = pl.read_delta(tape.paths.records)["data"].struct.field("id").sort().to_list()
        assert ids == [*range(30), *range(40, 50)]
        compared = reconcile(spark, tape, stream, deep=True)
        assert (compared.agrees, compared.records) == (True, 40)
        assert compared.passed is not None
        assert compared.passed.files == reported

    def test_changed_or_renamed_files_are_reported(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        stream = little_stream(source)
        for number in range(2):
            lay(source, f"{number}", rows(range(10 * number, 10 * number + 10)))
        assert capture(spark, lake, stream).fed == 20
        lay(source, "0", rows(range(12)))
        actual = capture(spark, lake, stream)
        assert actual.passed is not None
        assert (actual.fed, actual.passed.files) == (0, {"changed": ["0.parquet"]})
        (source / "1.parquet").rename(source / "2.parquet")
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="CAP-RENAMED"):
                capture(spark, lake, stream)
        (source / "2.parquet").rename(source / "1.parquet")
        lay(source, "3", rows(range(20, 30)))
        assert capture(spark, lake, stream).fed == 10

    def test_a_path_with_wildcards_is_listed_as_well(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        for number, name in enumerate(["in/0", "out/1", "in/deep/2", "in/_3"]):
            path = source / name
            lay(path.parent, path.name, rows(range(10 * number, 10 * number + 10)))
        stream = little_stream(source)
        stream = replace(stream, source=replace(stream.source, path=f"{source}/i*"))
        actual = capture(spark, lake, stream)
        assert (actual.fed, actual.passed) == (
            20,
            SkippedFiles({"hidden": 1}, {"hidden": ["in/_3.parquet"]}),
        )
        assert reconcile(spark, open_tape(lake, "little"), stream).passed == actual.passed

    def test_a_folder_whose_name_is_a_pattern_is_not_nothing(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        folder = tmp_path / "of [2024]"
        lay(folder, "0", rows(range(10)))
        stream = little_stream(folder)
        with pytest.raises(InvalidRequestError, match="CAP-SOURCE: .*reads it as a pattern"):
            capture(spark, lake, stream)
        named = replace(stream.source, path=f"{tmp_path}/of \\[2024\\]")
        assert capture(spark, lake, replace(stream, source=named)).fed == 10

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"options": {"maxFilesPerTrigger": "0"}}, "rejects its options: .*maxFilesPerTrigger"),
            (
                {"options": {"modifiedAfter": "2020-01-01T00:00:00"}},
                "rejects its options: .*allowed",
            ),
            ({"format": "nothing"}, "cannot be read: .*nothing"),
        ],
    )
    def test_what_spark_refuses_of_a_declaration_is_told(
        self, spark: SparkSession, lake: Lake, source: Path, given: dict[str, object], said: str
    ) -> None:
        lay(source, "0", rows(range(10)))
        stream = little_stream(source)
        with pytest.raises(
            InvalidRequestError, match=f"CAP-SOURCE: stream little: the source {said}"
        ):
            capture(spark, lake, replace(stream, source=replace(stream.source, **given)))
        assert capture(spark, lake, stream).fed == 10
        shutil.rmtree(source)
        with pytest.raises(
            InvalidRequestError, match="CAP-SOURCE: the source at .* cannot be read"
        ):
            reconcile(spark, open_tape(lake, "little"), stream)

    def test_what_delta_refuses_of_a_declaration_or_a_log_is_told(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        table = tmp_path / "table"
        pl.DataFrame({"id": [1], "place": ["a"], "at": [START]}).write_delta(str(table))
        stream = little_stream(table, source=Source(format="delta", path=str(table)))
        for option, code in (
            ({"startingTimestamp": "2999-01-01"}, "CAP-SOURCE: .* rejects its options"),
            ({"startingVersion": "9"}, "CAP-SOURCE-LOST: .* does not have this version"),
        ):
            with pytest.raises(InvalidRequestError, match=code):
                capture(spark, lake, replace(stream, source=replace(stream.source, options=option)))
        assert capture(spark, lake, stream).fed == 1
        (table / "_delta_log" / f"{1:020}.json").write_text("{rubbish", encoding="utf-8")
        with pytest.raises(SystemFailureError, match="CAP-DAMAGED: the log of a table is damaged"):
            capture(spark, lake, stream)

    def test_names_of_folders_are_text(self, spark: SparkSession, lake: Lake, source: Path) -> None:
        for number, store in enumerate(["007", "07", "7"]):
            lay(source / f"store={store}", "0", rows([number]))
        plain = replace(little_stream(source).source, schema=None)
        stream = little_stream(source, source=plain, workers=ByColumn(by="column", column="store"))
        assert capture(spark, lake, stream).passed == SkippedFiles({}, {})
        tape = open_tape(lake, "little")
        assert set(index.worker_labels(tape, newest_cut(tape)).values()) == {"007", "07", "7"}


COLUMNS = {"id": ["a", "b"], "at": [START, START], "net": [1, 2], "gross": [10, 20]}


def lay_columns(folder: Path, name: str, changes: dict[str, object], suffix: str) -> None:
    """A file with `COLUMNS`, of which some are others; None takes one away."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {**COLUMNS, **changes}
    table = pl.DataFrame({key: values for key, values in columns.items() if values is not None})
    if suffix == "parquet":
        table.write_parquet(folder / f"{name}.parquet")
    elif suffix == "orc":
        orc.write_table(table.to_arrow(), folder / f"{name}.orc")
    elif suffix == "json":
        table.write_ndjson(folder / f"{name}.json")
    else:
        table.write_csv(folder / f"{name}.csv")


class TestShapes:
    """Columns are told by name, file by file: what a file has besides is taken, or refused."""

    def stream(self, source: Path, suffix: str, **given: object) -> Stream:
        options = {"header": "true"} if suffix == "csv" else {}
        made = Source(format=suffix, path=str(source), options=options)
        by = ByKey(by="key", columns=("id",), count=2)
        return little_stream(source, source=replace(made, **given), workers=by)

    @pytest.mark.parametrize(
        ("suffix", "given"),
        [
            ("parquet", {}),
            ("csv", {}),
            ("orc", {}),
            ("json", {}),
            ("parquet", {"options": {"pathGlobFilter": "*.parquet"}}),
            ("parquet", {"path": "*"}),
        ],
    )
    def test_new_columns_of_files_are_added(
        self, spark: SparkSession, lake: Lake, source: Path, suffix: str, given: dict[str, object]
    ) -> None:
        if "path" in given:
            given = {"path": f"{source}/{given['path']}"}
        stream = self.stream(source, suffix, **given)
        for name, changes in (("0", {}), ("1", {"discount": [5, 6]}), ("2", {})):
            lay_columns(source, name, changes, suffix)
            assert capture(spark, lake, stream).records == 2
        rows = pl.read_delta(lake.stream("little").records).sort("batch")["data"].struct.unnest()
        assert [int(row or 0) for row in rows["discount"]] == [0, 0, 5, 6, 0, 0]
        assert reconcile(spark, open_tape(lake, "little"), stream, deep=True).agrees

    @pytest.mark.parametrize(
        ("suffix", "changes", "said"),
        [
            ("parquet", {"net": ["1", "2"]}, "net as string, but the stream has it as bigint"),
            ("parquet", {"net": [1.5, None]}, "net as double, but the stream has it as bigint"),
            ("parquet", {"net": None, "nett": [1, 2]}, "no column net"),
            ("parquet", {"net": None}, "no column net"),
            ("parquet", {"at": [START.date()] * 2}, "at as date, but the stream has it as time"),
            (
                "csv",
                {"net": None, "gross": None, "brutto": [1, 2]},
                "brutto in the position of net",
            ),
            ("csv", {"net": None}, "gross in the position of net"),
            ("orc", {"net": ["1", "2"]}, "net as string, but the stream has it as bigint"),
        ],
    )
    def test_all_else_is_refused_by_file_and_column(
        self,
        spark: SparkSession,
        lake: Lake,
        source: Path,
        suffix: str,
        changes: dict[str, object],
        said: str,
    ) -> None:
        stream = self.stream(source, suffix)
        lay_columns(source, "0", {}, suffix)
        capture(spark, lake, stream)
        before = {path: delta.version_of(path) for path in vars_of(lake)}
        lay_columns(source, "1", changes, suffix)
        with pytest.raises(
            InvalidRequestError, match=rf"CAP-SCHEMA: .*the file 1\.{suffix} has {said}"
        ):
            capture(spark, lake, stream)
        assert {path: delta.version_of(path) for path in vars_of(lake)} == before
        # Once it is mended, it is captured as any other.
        lay_columns(source, "1", {}, suffix)
        assert capture(spark, lake, stream).records == 2

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (
                {"fine": pa.array([1, 2], pa.timestamp("ns", "UTC"))},
                r"file 1\.parquet has .*fine as",
            ),
            ({"NET": pa.array([1, 2])}, r"file 1\.parquet has .*The column `net` already exists"),
            ({"clock": pa.array([1, 2], pa.time64("us"))}, "TIME is not supported"),
            (
                {"Order Total (EUR)": pa.array([1, 2])},
                r"CAP-COLUMN: stream little: the source has a column 'Order Total \(EUR\)'",
            ),
            ({"_WORKER": pa.array([1, 2])}, "CAP-COLUMN: .*'_WORKER': Capstan uses that name"),
        ],
    )
    def test_what_spark_does_not_take_is_refused_by_name(
        self, spark: SparkSession, lake: Lake, source: Path, more: dict[str, pa.Array], said: str
    ) -> None:
        source.mkdir()
        parquet.write_table(pa.table({**COLUMNS, **more}), source / "1.parquet")
        with pytest.raises(InvalidRequestError, match=said):
            capture(spark, lake, self.stream(source, "parquet"))
        assert not Path(lake.root).exists()

    def test_a_column_called_as_spark_calls_its_own_is_a_column(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        lay_columns(source / "x", "1", {"_metadata": ["a", "b"]}, "parquet")
        by = ByPartition(by="partition")
        stream = replace(self.stream(source, "parquet"), workers=by)
        assert capture(spark, lake, stream).records == 2
        tape = open_tape(lake, "little")
        assert set(index.worker_labels(tape, newest_cut(tape)).values()) == {"x"}
        assert reconcile(spark, tape, stream, deep=True).agrees

    def test_columns_in_another_order_are_read_by_name_or_refused(
        self, spark: SparkSession, lake: Lake, source: Path, tmp_path: Path
    ) -> None:
        for suffix in ("parquet", "csv"):
            folder, its = source / suffix, Lake.at(tmp_path / suffix)
            stream = self.stream(folder, suffix)
            lay_columns(folder, "0", {}, suffix)
            capture(spark, its, stream)
            swapped = {name: COLUMNS[name] for name in ("id", "at", "gross", "net")}
            pl.DataFrame(swapped).write_csv(folder / "1.csv") if suffix == "csv" else pl.DataFrame(
                swapped
            ).write_parquet(folder / "1.parquet")
            if suffix == "csv":
                with pytest.raises(
                    InvalidRequestError, match="CAP-SCHEMA.*has gross in the position of net"
                ):
                    capture(spark, its, stream)
                continue
            assert capture(spark, its, stream).records == 2
            rows = pl.read_delta(its.stream("little").records)["data"].struct.unnest()
            assert sorted(rows["net"]) == [1, 1, 2, 2]

    @pytest.mark.parametrize("kind", ["STRING", "INT"])
    def test_a_declared_type_that_a_file_does_not_have_is_named(
        self, spark: SparkSession, lake: Lake, source: Path, kind: str
    ) -> None:
        lay_columns(source, "0", {}, "parquet")
        schema = f"id STRING, at TIMESTAMP, net {kind}, gross BIGINT, more DOUBLE"
        with pytest.raises(InvalidRequestError, match=r"CAP-SCHEMA.*0\.parquet has net as bigint"):
            capture(spark, lake, self.stream(source, "parquet", schema=schema))
        assert lake.streams() == []


class TestConditions:
    """What Spark and Delta say of a source is told by a code, and what helps does help."""

    def test_of_a_delta_table(
        self, spark: SparkSession, lake: Lake, source: Path, tmp_path: Path
    ) -> None:
        table = str(tmp_path / "table")
        lay(source, "0", rows(range(10)))
        spark.read.parquet(str(source)).write.format("delta").save(table)
        stream = little_stream(source, source=Source(format="delta", path=table))
        assert capture(spark, lake, stream).records == 10
        spark.sql(f"UPDATE delta.`{table}` SET amount = 7 WHERE id = 3")
        with pytest.raises(
            InvalidRequestError, match="^CAP-SOURCE-CHANGED: .*IGNORE_CHANGES"
        ) as caught:
            capture(spark, lake, stream)
        assert "skipChangeCommits" in caught.value.hint
        skipping = replace(stream.source, options={"skipChangeCommits": "true"})
        assert capture(spark, lake, replace(stream, source=skipping)).records == 0

        shutil.rmtree(table)
        lay(source, "1", rows(range(10, 20)))
        spark.read.parquet(str(source)).write.format("delta").save(table)
        with pytest.raises(InvalidRequestError, match="^CAP-SOURCE-OTHER") as caught:
            capture(spark, lake, stream)
        assert "capture little --reseat" in caught.value.hint
        assert capture(spark, lake, stream, reseat=True).fed == 20

    def test_of_a_record_that_cannot_be_read(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        source.mkdir(parents=True)
        lines = ['{"id": 1, "place": "a", "at": "2024-05-01T00:00:00Z"}', '{"id": "x"']
        (source / "0.json").write_text("\n".join(lines), encoding="utf-8")
        schema = "id BIGINT, place STRING, at TIMESTAMP"
        options = {"mode": "FAILFAST"}
        made = Source(format="json", path=str(source), schema=schema, options=options)
        with pytest.raises(InvalidRequestError, match="^CAP-MALFORMED: stream little: a record"):
            capture(spark, lake, little_stream(source, source=made))


class TestSchemaChange:
    def test_a_delta_source_s_new_columns_are_captured(
        self, spark: SparkSession, lake: Lake, source: Path, tmp_path: Path
    ) -> None:
        table = str(tmp_path / "table")
        lay(source, "0", rows(range(30)))
        content = spark.read.parquet(str(source))
        content.write.format("delta").save(table)
        stream = little_stream(source, source=Source(format="delta", path=table))
        capture(spark, lake, stream)
        first = open_tape(lake, "little")
        wider = content.selectExpr(
            "id + 30 AS id", "place", "at + INTERVAL 15 HOURS AS at", "amount", "note",
            "id * 1.5D AS price", "named_struct('kind', place) AS extra",
        )  # fmt: skip
        wider.write.format("delta").mode("append").option("mergeSchema", "true").save(table)

        assert capture(spark, lake, stream).records == 30

        tape = open_tape(lake, "little")
        assert verify(spark, lake, tape, deep=True).valid
        # What was recorded before has nulls there; and it is played and audited as it was.
        request = Request("little", "old", since="2024-05-01", until="2024-05-01T10:00:00Z")
        outcome = replay(spark, lake, declared(stream), request)
        audit = outcome.certificate.audit
        assert isinstance(audit, dict)
        assert (audit["kind"], audit["passed"]) == ("copy", True)
        old = pl.read_delta(lake.table("old"))
        assert old.height == 20
        assert old["price"].null_count() == old["extra"].null_count() == 20
        assert first.paths == tape.paths

    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            ("id BIGINT, place STRING, at TIMESTAMP, amount INT", "note is no longer in the"),
            (
                "id BIGINT, place STRING, at TIMESTAMP, amount BIGINT, note STRING",
                "amount was int and is now bigint",
            ),
            (
                "id BIGINT, place STRING, at TIMESTAMP, note STRING, amount INT",
                "amount has changed its position",
            ),
            (
                "id BIGINT, place STRING, at TIMESTAMP, amount INT, renamed STRING",
                "note is no longer in the source",
            ),
            (
                "extra INT, id BIGINT, place STRING, at TIMESTAMP, amount INT, note STRING",
                "id has changed its position",
            ),
        ],
    )
    def test_other_changes_are_refused_before_writing(
        self, spark: SparkSession, shared: tuple[Lake, Path], columns: str, said: str
    ) -> None:
        lake, source = shared
        stream = little_stream(source)
        before = {path: delta.version_of(path) for path in vars_of(lake)}
        changed = replace(stream, source=replace(stream.source, schema=columns))
        with pytest.raises(
            InvalidRequestError, match=f"CAP-SCHEMA: stream little: column {said}"
        ) as caught:
            capture(spark, lake, changed)
        assert "capture the new schema as a new stream" in caught.value.hint
        assert {path: delta.version_of(path) for path in vars_of(lake)} == before

    def test_a_type_without_a_content_hash_makes_no_tape(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        lay(source, "0", rows(range(4)))
        stream = little_stream(source)
        columns = (stream.source.schema or "") + ", wait INTERVAL DAY TO SECOND"
        changed = replace(stream, source=replace(stream.source, schema=columns))
        with pytest.raises(InvalidRequestError, match="CAP-TYPE: column wait has type interval"):
            capture(spark, lake, changed)
        assert lake.streams() == []


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Path]:
    """A captured stream with more to come, which nothing of what is refused changes."""
    root = tmp_path_factory.mktemp("shared")
    lake, source = Lake.at(root / "lake"), root / "source"
    lay(source, "0", rows(range(10)))
    capture(spark, lake, little_stream(source))
    lay(source, "1", rows(range(10, 20)))
    return lake, source


def vars_of(lake: Lake) -> list[str]:
    paths = lake.stream("little")
    return [paths.events, paths.records, paths.late, paths.workers, paths.feed]
