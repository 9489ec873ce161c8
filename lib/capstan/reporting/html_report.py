"""The report of a run: one HTML file with its certificate, what it does not cover, and its audit.

Its content security policy allows neither scripts nor loading, so that it can be attached to a
ticket and opened anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime

from markupsafe import Markup

from capstan.core.config import ProjectConfig, split_streams
from capstan.reporting.commit_history import read_commit_times
from capstan.reporting.html import render, static
from capstan.reporting.run_view import RunView, view_run
from capstan.reporting.stream_view import StreamHistory, view_stream
from capstan.storage.lake import Lake


def run_report(lake: Lake, config: ProjectConfig, run: str) -> str:
    """The report of a run as HTML.

    Late rows are those that the certificate counts, at its cut. The plots of the stream show the
    present tape, which may be longer, or gone.
    """
    lake.require()
    view = view_run(lake, run)
    # Of several streams, the certificate has a part each, and no plot is of all of them.
    several = len(split_streams(view.stream)) > 1
    tape = None if several else view_stream(lake, config, view.stream)
    return render(
        "report.html",
        view=view,
        tape=tape if isinstance(tape, StreamHistory) else None,
        course=read_commit_times(lake, tape) if isinstance(tape, StreamHistory) else None,
        range_late=None if view.certificate is None else view.certificate.late,
        counts=_by_replay_worker(view),
        lake=lake.root,
        base="",
        made=datetime.now(UTC),
        style=Markup(static("style.css")),  # noqa: S704  (a file of this package)
        style_hash=_style_hash(),
    )


def report_policy() -> str:
    """The content security policy of a report, which allows only its own style."""
    return f"default-src 'none'; style-src '{_style_hash()}'; base-uri 'none'; form-action 'none'"


def _style_hash() -> str:
    digest = hashlib.sha256(static("style.css").encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _by_replay_worker(view: RunView) -> list[tuple[str, int]]:
    """The records of each replay worker, named by the captured workers that it replays."""
    shares = None if view.certificate is None else view.certificate.replay_workers
    return [
        (", ".join(map(str, share.get("sequences") or ())) or "none", share.get("records") or 0)
        for share in shares or ()
    ]
