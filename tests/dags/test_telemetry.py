"""What tasks tell of a stream, as it arrives at a StatsD or an OpenTelemetry server of loopback."""

from __future__ import annotations

import gzip
import http.server
import socket
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from opentelemetry import metrics as otel
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.telemetry import send_attention
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.reporting.attention.items import AttentionList
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import Books
from tests.support.recorded_tapes import Recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

LITTLE = Recorded("little", ["north", "a.b c"], commits=3, slower={1: 2}, late={"late": 4})


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(10)
        yield listening


@pytest.fixture
def told(server: socket.socket, monkeypatch: pytest.MonkeyPatch):
    """Has Airflow tell its StatsD, set up as a task's process sets it up; what has arrived."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))

    def arrived() -> dict[str, str]:
        # The last one: what was sent before it is here, as loopback keeps the order.
        stats.gauge("end", 1)
        actual = {}
        while "airflow.end" not in actual:
            name, _, value = server.recv(65_536).decode().partition(":")
            actual[name] = value
        return actual

    def begin() -> None:
        stats.initialize(factory=get_stats_factory(), export_legacy_names=True)

    arrived.begin = begin  # type: ignore[attr-defined]
    begin()
    yield arrived
    monkeypatch.undo()
    begin()


def lay(place: Place) -> None:
    lake = Lake.at(place.lake)
    LITTLE.lay(lake)
    LITTLE.verified(lake, 1, datetime(2024, 6, 1, tzinfo=UTC))


def tell(place: Place, stream: object = "little") -> None:
    from capstan.airflow.tasks.telemetry import send_stream_metrics

    send_stream_metrics(read_settings(place.root / "dag.py"), stream)


def test_figures_of_a_stream_arrive(place: Place, told) -> None:
    lay(place)
    tell(place)
    actual = told()
    assert actual["airflow.capstan.events_total.little"] == f"{2 + 3 * 2 * (6 + 4)}|g"
    assert actual["airflow.capstan.late_records_total.little.late"] == "4|g"
    assert actual["airflow.capstan.unverified_commits.little"] == "1|g"
    assert "airflow.capstan.worker_frontier_lag_seconds.little.a_b_c" in actual


def test_no_run_is_read_in_detail_for_them(
    place: Place, told, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(place)
    lake = Lake.at(place.lake)
    kept = Books(lake, "little", lake.table("t"))
    kept.failed("t-0000000a-1", [0], Region(Box((None,), (None,))))
    monkeypatch.delattr("capstan.reporting.run_view.read_histories")
    tell(place)
    assert told()["airflow.capstan.runs.little.failed"] == "1|g"


def test_what_needs_a_person_is_counted(place: Place, told) -> None:
    lay(place)
    listed = AttentionList((), {("waiting", "little"): 3})
    send_attention(read_settings(place.root / "dag.py"), listed)
    actual = told()
    assert actual["airflow.capstan.attention.little.waiting"] == "3|g"
    assert actual["airflow.capstan.attention.little.gap"] == "0|g"


def test_where_tags_are_kept_they_tell_streams_apart(place: Place, told, monkeypatch) -> None:
    lay(place)
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    told.begin()
    tell(place)
    assert told()["airflow.capstan.files,stream=little,table=events"] == "3|g"


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what an exporter of OpenTelemetry sends; the server keeps it."""

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            sent = gzip.decompress(sent)
        self.server.sent.append((self.path, sent))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[http.server.HTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as listening:
        listening.sent = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


def test_open_telemetry_has_them_by_their_tags(place: Place, told, collector, monkeypatch) -> None:
    lay(place)
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    port = collector.server_address[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    told.begin()
    with monkeypatch.context() as here:
        # It would be flushed when the tests end, and nobody listens any more.
        here.setattr("atexit.register", lambda *_: None)
        tell(place)
    provider = otel.get_meter_provider()
    provider.force_flush()
    provider.shutdown()
    actual = {}
    for path, sent in collector.sent:
        assert path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(sent).resource_metrics:
            for metric in (item for scope in resource.scope_metrics for item in scope.metrics):
                for point in metric.gauge.data_points:
                    tags = {tag.key: tag.value.string_value for tag in point.attributes}
                    value = point.as_double or point.as_int
                    actual[metric.name, frozenset(tags.items())] = value
    own = ("stream", "little")
    assert actual["airflow.capstan.files", frozenset({own, ("table", "events")})] == 3
    assert actual["airflow.capstan.late_records_total", frozenset({own, ("reason", "late")})] == 4


def test_a_task_tells_them_when_its_job_has_ended(place: Place, told, submit) -> None:
    lay(place)
    submit.answers({"exit": 1, "result": {"error": "CAP-X", "message": "m", "hint": ""}})
    place.run("capstan_capture__little")
    assert told()["airflow.capstan.commits_total.little"] == "3|g"


def test_what_goes_wrong_with_it_fails_nothing(place: Place, told, caplog) -> None:
    for stream in ("../etc", "none", None, 7):
        tell(place, stream)
    assert set(told()) == {"airflow.end"}
    assert "metrics of ../etc could not be sent" in caplog.text


def test_nobody_listens_and_no_lake_is_opened(place: Place, caplog) -> None:
    tell(place, "../etc")
    assert caplog.text == ""
