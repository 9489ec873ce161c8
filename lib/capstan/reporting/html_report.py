"""The report of a run: one file that says what was played, what was not, and what was found.

It loads nothing, runs nothing, and says so itself in a policy that a browser follows: it can be
attached to a ticket and opened anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from markupsafe import Markup

from capstan.core.config import ProjectConfig
from capstan.reporting.commit_history import view_course
from capstan.reporting.html import render, static
from capstan.reporting.run_view import RunView, view_run
from capstan.reporting.stream_view import StreamView, view_stream
from capstan.reporting.svg_plots import bar_plot
from capstan.storage.lake import Lake


def run_report(lake: Lake, declarations: ProjectConfig, run: str) -> str:
    """The report of a run as HTML.

    The late rows of its range are those that its certificate counts, at its cut; the plots of the
    stream are of the present tape, which may be longer, or gone.

    Raises:
        InvalidRequestError: `CAP-RUN` when there is no such run; `CAP-LAKE` when there is no lake.
    """
    lake.require()
    view = view_run(lake, run)
    tape = view_stream(lake, declarations, view.stream)
    late = view.certificate.get("late")
    return render(
        "report.html",
        view=view,
        tape=tape if isinstance(tape, StreamView) else None,
        course=view_course(lake, tape) if isinstance(tape, StreamView) else None,
        range_late=late if isinstance(late, Mapping) else None,
        counts=_by_replay_worker(view),
        lake=lake.root,
        base="",
        made=datetime.now(UTC),
        style=Markup(static("style.css")),  # noqa: S704  (a file of this package)
        style_hash=_style_hash(),
    )


def report_policy() -> str:
    """The content security policy of a report: its own style, and nothing else."""
    return f"default-src 'none'; style-src '{_style_hash()}'; base-uri 'none'; form-action 'none'"


def _style_hash() -> str:
    digest = hashlib.sha256(static("style.css").encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _by_replay_worker(view: RunView) -> Markup:
    """Records by replay worker, which plays the sequences of one or several captured workers."""
    dealt = view.certificate.get("replay_workers")
    rows = [
        (", ".join(map(str, each.get("sequences") or ())) or "none", int(each.get("records") or 0))
        for each in (dealt if isinstance(dealt, list) else [])
        if isinstance(each, Mapping)
    ]
    return bar_plot("Records by replay worker", "records", rows) if rows else Markup("")
