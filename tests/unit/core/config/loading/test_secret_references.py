"""References to secrets: which are taken, which are refused, and what is masked afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from capstan.core.config import ByKey, EpochTime, Source, Stream, load_config, load_sound
from capstan.core.config.loading.secret_references import (
    VARIABLE,
    literal_secrets,
    references,
    resolve,
)
from capstan.errors import InvalidRequestError, redaction

MARK = "m4rk-0f-a-secret"
OPTIONS = {
    "kafka.bootstrap.servers": "{conn:shop.kafka:host}:{conn:shop.kafka:port}",
    "kafka.sasl.jaas.config": 'Login required password="{env:KAFKA_PASSWORD}";',
    "kafka.ssl.key.password": "{conn:shop.kafka:ssl.key.password}",
    "startingOffsets": '{"orders": {"0": 5}}',
}


@pytest.fixture(autouse=True)
def _nothing_concealed() -> Iterator[None]:
    redaction._hidden.clear()
    yield
    redaction._hidden.clear()


def stream(options: dict[str, str]) -> Stream:
    source = Source(format="kafka", options=options)
    return Stream("orders", source, ByKey(columns=("key",), count=2), EpochTime())


def test_references_become_values_and_the_declaration_keeps_them() -> None:
    declared = stream(OPTIONS)
    handed = {"conn:shop.kafka:host": "broker", "conn:shop.kafka:port": 9092}
    handed["conn:shop.kafka:ssl.key.password"] = "k3y"
    environment = {"KAFKA_PASSWORD": MARK, VARIABLE: json.dumps(handed)}
    resolved = resolve(declared, environment)
    assert resolved.source.options == {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.sasl.jaas.config": f'Login required password="{MARK}";',
        "kafka.ssl.key.password": "k3y",
        "startingOffsets": '{"orders": {"0": 5}}',
    }
    assert declared == stream(OPTIONS)
    assert redaction.masked(f"broker:9092 {MARK}") == "broker:9092 ***"


def test_arguments_of_a_function_may_be_secrets() -> None:
    declared = stream({})
    for source in (Source(function="shop:orders", options={"token": "{env:TOKEN}"}),
                   Source(table="shop.orders", options={"token": "{env:TOKEN}"})):  # fmt: skip
        made = resolve(replace(declared, source=source), {"TOKEN": MARK})
        assert made.source == replace(source, options={"token": MARK})


def test_a_stream_without_references_is_left_alone() -> None:
    declared = stream({"subscribe": "orders", "startingOffsets": '{"orders": {"0": 5}}'})
    assert resolve(declared, {}) is declared


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("{env:NOWHERE}", "NOWHERE", "set NOWHERE in the environment"),
        ("{env:EMPTY}", "EMPTY", "set EMPTY in the environment"),
        ("{conn:shop:password}", "shop:password", "give connection shop of Airflow a value"),
    ],
)
def test_a_reference_without_a_value_is_refused(text: str, name: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-SECRET: stream orders: ") as caught:
        resolve(stream({"kafka.ssl.key.password": text}), {"EMPTY": ""})
    assert caught.value.fields == {
        "stream": "orders",
        "key": "kafka.ssl.key.password",
        "name": name,
    }
    assert text in caught.value.message
    assert hint in caught.value.hint


def test_values_that_were_handed_over_wrongly_are_not_shown() -> None:
    with pytest.raises(InvalidRequestError, match="CAP-SECRET: CAPSTAN_SECRETS") as caught:
        resolve(stream({"a": "{conn:a:b}"}), {VARIABLE: f"[{MARK!r}"})
    assert MARK not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


@pytest.mark.parametrize("text", ["{env:}", "{env:1A}", "{env:A B}", "{conn:a}", "{conn::b}"])
def test_a_malformed_reference_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not written as"):
        list(references({"a": text}))
    with pytest.raises(InvalidRequestError, match="CAP-SECRET"):
        resolve(stream({"a": f"{MARK} {text}"}), {})
    file = declare(tmp_path, f'{{subscribe: "{text}"}}')
    with pytest.raises(InvalidRequestError, match=r"CAP-DECLARE: .*options\.subscribe: .*is not w"):
        load_config(file, lake="/lake")


def declare(folder: Path, options: str, path: str = "/data/orders") -> Path:
    file = folder / "streams.yaml"
    file.write_text(
        "streams:\n"
        "  orders:\n"
        f'    source: {{format: parquet, path: "{path}", options: {options}}}\n'
        "    workers: {by: key, columns: [a], count: 2}\n"
        "    time: {domain: epoch}\n",
        encoding="utf-8",
    )
    return file


def test_a_path_takes_no_reference(tmp_path: Path) -> None:
    [mistake] = load_sound(declare(tmp_path, "{}", "/data/{env:A}"), lake="/lake").mistakes
    assert "{env:A} is not a variable" in mistake.error.message


def test_loading_takes_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", MARK)
    file = declare(tmp_path, '{fs.s3a.secret.key: "{env:PASSWORD}", pathGlobFilter: "{lake}*"}')
    options = load_config(file, lake="/lake").streams["orders"].source.options
    assert options == {"fs.s3a.secret.key": "{env:PASSWORD}", "pathGlobFilter": "/lake*"}


def test_values_that_look_like_secrets_are_found() -> None:
    actual = literal_secrets(
        {
            "orders": stream(
                {
                    "kafka.sasl.jaas.config": "Login required;",
                    "kafka.ssl.keystore.password": "{env:A}",
                    "fs.s3a.access.key": "abc",
                    "fs.s3a.aws.credentials.provider": "org.example.Provider",
                    "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp.example",
                    "subscribe": "passing",
                }
            )
        }
    )
    assert [text.partition(" ")[0] for text in actual] == [
        "streams.orders.source.options.kafka.sasl.jaas.config",
        "streams.orders.source.options.fs.s3a.access.key",
    ]
