"""Transforms: what may be registered, the hash of their code, and the registry."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.config import Transform, load_config
from capstan.core.config.loading.registry import Registry, transform, transforms
from capstan.core.config.sql_rules import normalised, problem_with_expression, problem_with_query
from capstan.errors import InvalidRequestError

SQL = "SELECT day, count(*) AS n FROM records GROUP BY day"


def of(sql: str = SQL, **settings: object) -> Transform:
    return Transform(name="daily", sql=sql, **settings)  # type: ignore[arg-type]


def same(records: object) -> object:
    return records


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `shop_transforms` that tests write and import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "shop_transforms.py"
    sys.modules.pop("shop_transforms", None)


def in_library(library: Path, source: str) -> str:
    """The hash of `shop_transforms:total` when the module reads `source`."""
    library.write_text(source)
    sys.modules.pop("shop_transforms", None)
    importlib.invalidate_caches()
    return Transform(name="total", function="shop_transforms:total").code_hash


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT day, count(*) AS n FROM records GROUP BY day -- a comment",
        "SELECT  day,\n\tcount(*) AS n /* and\nanother */ FROM records GROUP BY day\n",
    ],
)
def test_comments_and_blanks_do_not_count(sql: str) -> None:
    assert of(sql).code_hash == of().code_hash


@pytest.mark.parametrize(
    "sql",
    [
        SQL.replace("n FROM", "m FROM"),
        SQL.replace("FROM", ", 'a  b' AS t FROM"),
        SQL.replace("FROM", ", 'a b' AS t FROM"),
        SQL.replace("FROM", ", 'a -- b' AS t FROM"),
        SQL.replace("FROM", ", 'a -- c' AS t FROM"),
        SQL.replace("FROM", r", 'it\'s  b' AS t FROM"),
        SQL.replace("FROM", r", 'it\'s b' AS t FROM"),
        SQL.replace("FROM", r", r'a\' AS t, 'x  y' AS u FROM"),
        SQL.replace("FROM", r", r'a\' AS t, 'x y' AS u FROM"),
    ],
)
def test_each_other_text_has_a_hash_of_its_own(sql: str) -> None:
    hashes = {of(item).code_hash for item in (SQL, sql)}
    assert len(hashes) == 2
    inner = sql.replace("  ", " ")
    assert (of(inner).code_hash == of(sql).code_hash) == (inner == sql)


def test_settings_count_and_descriptions_do_not() -> None:
    variants = [
        of(),
        of(time="day"),
        of(time="day", grain=timedelta(days=1)),
        of(time="day", grain=timedelta(days=2)),
        of(worker="_worker"),
        of(keys=("a", "b")),
        of(keys=("b", "a")),
    ]
    assert len({variant.code_hash for variant in variants}) == len(variants)
    assert of(description="words").code_hash == of().code_hash


def test_the_hash_is_the_same_in_any_process() -> None:
    whole = of(time="day", grain=timedelta(days=1), keys=("a",))
    assert whole.code_hash == "e27ecd30128fd075cefdd7dfe61540b04fb5622218b5f0f392f7028dedc26fbb"


@given(st.text(alphabet="ab'\"`-/* \n\\r;"))
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM records", "start with SELECT"),
        ("", "start with SELECT"),
        ("-- SELECT 1 FROM records", "start with SELECT"),
        ("SELECT 1", "does not read the view 'records'"),
        ("SELECT 'records'", "does not read the view 'records'"),
        ("SELECT 1 FROM records; DROP TABLE x", "contains a ';'"),
        ("SELECT 1 FROM records;", "contains a ';'"),
        ("SELECT rand() FROM records", "calls rand"),
        ("SELECT * FROM records WHERE at < Current_Timestamp", "calls Current_Timestamp"),
        ("SELECT uuid /* x */ () FROM records", "calls uuid"),
        ("SELECT `uuid`() FROM records", "calls uuid,"),
        ("SELECT unix_timestamp( ) FROM records", "calls unix_timestamp"),
        ("SELECT aes_encrypt(a, key(b, c), 'GCM') FROM records", "calls aes_encrypt"),
        ("SELECT current_user FROM records", "calls current_user"),
        ("SELECT * FROM records TABLESAMPLE (50 PERCENT)", "calls TABLESAMPLE"),
        ("SELECT * FROM records WHERE at < DATE 'today'", "takes the moment 'today' from"),
        ("SELECT cast(r' Now ' AS TIMESTAMP) FROM records", "the moment r' Now '"),
        ("SELECT 'yesterday'::date FROM records", "the moment 'yesterday'"),
    ],
)
def test_only_one_deterministic_query_is_taken(sql: str, said: str) -> None:
    problem = problem_with_query(sql)
    assert problem is not None
    assert said in problem
    with pytest.raises(ValueError, match="Value error"):
        of(sql)


@pytest.mark.parametrize(
    "name",
    [
        "current_timezone", "localtimestamp", "curdate", "current_time", "current_catalog",
        "current_database", "current_schema", "current_path", "current_user", "session_user",
        "user", "version", "reflect", "try_reflect", "java_method", "python_worker_logs", "rand",
        "randn", "randstr", "uniform", "shuffle", "monotonically_increasing_id",
        "spark_partition_id", "input_file_name",
    ],
)  # fmt: skip
def test_what_reads_clock_chance_machine_or_session_is_named(name: str) -> None:
    assert f"calls {name}, " in (problem_with_expression(f"concat(a, {name}(b))") or "")
    assert problem_with_expression(f"{name}_of(r.{name}, b)") is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ';' AS a FROM records",
        "SELECT unix_timestamp(a), unix_timestamp(concat(a, b), 'yyyy') FROM records",
        "SELECT to_unix_timestamp(a), aes_encrypt(a, k, 'CBC', 'DEFAULT', iv) FROM records",
        "SELECT user, version, `now`, r.session_user, first(a), collect_list(b) FROM records r",
        "SELECT * FROM records WHERE a = 'today' AND at > DATE '2024-01-01' AND b IN ('now', 'x')",
        "SELECT uuid, now, r.current_date, 1 AS current_time FROM records r",
        "WITH a AS (SELECT * FROM `records`) SELECT * FROM a",
        "SELECT 'rand()' -- now()\nFROM records",
    ],
)
def test_columns_and_text_are_not_taken_for_calls(sql: str) -> None:
    assert problem_with_query(sql) is None


def test_an_expression_is_one_deterministic_one() -> None:
    assert problem_with_expression("to_timestamp(a)") is None
    assert "empty" in (problem_with_expression(" -- a\n") or "")
    assert "calls unix" not in (problem_with_expression("unix_micros(a)") or "")
    assert "calls now" in (problem_with_expression("coalesce(a, now())") or "")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("{time: day}", "either sql or function"),
        (f"{{sql: '{SQL}', function: 'a:b'}}", "either sql or function"),
        (f"{{sql: '{SQL}', grain: 1 day}}", "a grain but no time"),
        (f"{{sql: '{SQL}', nondeterministic: true}}", "unknown key"),
        ("{sql: SELECT rand() FROM records}", "calls rand"),
        (f"{{sql: '{SQL}', tolerance: -1e-9}}", "tolerance"),
        (f"{{sql: '{SQL}', tolerance: .nan}}", "tolerance"),
        (f"{{sql: '{SQL}', tolerance: 1}}", "tolerance"),
        ("{function: os.system}", "package.module:function"),
        ("{function: 'os:system(1)'}", "package.module:function"),
    ],
)
def test_declared_transforms_are_checked(tmp_path: Path, fields: str, said: str) -> None:
    path = tmp_path / "streams.yaml"
    path.write_text(f"transforms:\n  daily: {fields}\n")
    with pytest.raises(InvalidRequestError) as caught:
        load_config(path, lake="/lake")
    assert f"{path}:2: transforms.daily" in caught.value.message
    assert said in caught.value.message


def test_a_tolerance_is_declared_and_changes_no_code(tmp_path: Path) -> None:
    path = tmp_path / "streams.yaml"
    lines = [
        f"{{sql: '{SQL}'}}",
        f"{{sql: '{SQL}', tolerance: 1e-6}}",
        f"{{sql: '{SQL}', tolerance: 0}}",
    ]
    path.write_text("transforms:\n" + "".join(f"  t{n}: {x}\n" for n, x in enumerate(lines)))
    actual = load_config(path, lake="/lake").transforms.values()
    assert [item.tolerance for item in actual] == [1e-9, 1e-6, 0]
    assert len({item.code_hash for item in actual}) == 1


def test_a_function_is_found_by_its_reference(library: Path) -> None:
    in_library(library, "def total(records):\n    return records\n")
    actual = Transform(name="total", function="shop_transforms:total").resolve()
    assert actual is not None
    assert actual(7) == 7
    assert of().resolve() is None


def test_function_hashes_cover_module_dependencies(library: Path) -> None:
    source = """\
RATE = 2
OTHER = 3


def rated(x):
    return x * RATE


def total(records):
    return [rated(x) for x in records]


def unused(x):
    return x
"""
    first = in_library(library, source)
    assert in_library(library, source) == first
    assert in_library(library, source.replace("RATE = 2", "RATE = 5")) != first
    assert in_library(library, source.replace("x * RATE", "x + RATE")) != first
    assert in_library(library, source.replace("in records", "in records[1:]")) != first
    assert in_library(library, source.replace("OTHER = 3", "OTHER = 4")) == first
    assert in_library(library, source.replace("    return x\n", "    return -x\n")) == first


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("no_such_module_here:total", "cannot be imported"),
        ("math:no_such_function", "cannot be imported"),
        ("math:pi", "is not a function"),
    ],
)
def test_functions_that_are_not_there_are_refused(reference: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"CAP-TRANSFORM.*daily.*{reference}.*{said}"):
        Transform(name="daily", function=reference).resolve()


def test_a_function_without_source_has_no_hash() -> None:
    with pytest.raises(InvalidRequestError, match=r"CAP-TRANSFORM.*no source"):
        _ = Transform(name="root", function="math:sqrt").code_hash


def test_a_decorated_function_is_a_transform() -> None:
    registry = Registry()

    @registry.transform(name="doubled", time="day", grain="1 day", keys=("a",), tolerance=0)
    def double(records: int) -> int:
        return records * 2

    actual = registry.get("doubled")
    assert (actual.time, actual.grain, actual.keys) == ("day", timedelta(days=1), ("a",))
    assert actual.tolerance == 0
    function = actual.resolve()
    assert function is not None
    assert function(4) == double(4) == 8
    assert len(actual.code_hash) == 64


def test_functions_of_one_name_inside_others_are_kept_apart() -> None:
    registry = Registry()

    def first() -> None:
        @registry.transform(name="first")
        def inner(records: int) -> int:
            return 1

    def second() -> None:
        @registry.transform(name="second")
        def inner(records: int) -> int:
            return 2

    first()
    second()
    one, two = registry.get("first").resolve(), registry.get("second").resolve()
    assert one is not None
    assert two is not None
    assert (one(0), two(0)) == (1, 2)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    registry = Registry({"daily": of()})
    with pytest.raises(InvalidRequestError) as caught:
        registry.get("dayly")
    assert caught.value.code == "CAP-TRANSFORM"
    assert "did you mean 'daily'?" in caught.value.message
    assert caught.value.fields["known"] == ["daily"]
    with pytest.raises(InvalidRequestError, match="CAP-TRANSFORM"):
        registry.get("SELECT 1 FROM records")


def test_one_name_stands_for_one_transform() -> None:
    registry = Registry({"daily": of()})
    registry.add(of())
    with pytest.raises(InvalidRequestError, match=r"CAP-TRANSFORM.*two transforms named daily"):
        registry.add(of(time="day"))


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"CAP-TRANSFORM.*grain.*number and a unit"):
        transform(name="bad", time="day", grain="soon")(same)
    with pytest.raises(InvalidRequestError, match=r"CAP-TRANSFORM.*cannot name a transform"):
        transform(name="../bad")(same)


def test_requests_see_transforms_of_the_file_and_of_python() -> None:
    @transform(name="from_python_only")
    def kept(records: int) -> int:
        return records

    registry = transforms({"daily": of()})
    assert set(registry.names) >= {"daily", "from_python_only"}
    with pytest.raises(InvalidRequestError, match="two transforms named from_python_only"):
        transforms({"from_python_only": Transform(name="from_python_only", sql=SQL)})


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT * FROM records", False),
        ("SELECT size(_stamp) AS n FROM records", True),
        ("SELECT records.`_Stamp` FROM records", True),
        ("SELECT my_stamp, _stamps FROM records -- not _stamp", False),
    ],
)
def test_a_transform_reads_the_stamp_that_it_names(sql: str, reads: bool) -> None:
    assert of(sql).reads_stamp is reads


def test_a_function_reads_the_stamp_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, body in (("plain", "records"), ("stamped", 'records.select("_stamp")')):
        text = f"def total(records):\n    return {body}\n"
        (tmp_path / f"stamps_of_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = [
        Transform(name="total", function=f"stamps_of_{name}:total").reads_stamp
        for name in ("plain", "stamped")
    ]
    assert found == [False, True]
