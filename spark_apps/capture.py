"""Append to the tape what has arrived of a declared stream.

Arguments: a file with the request as JSON (or --request JSON), --lake, --streams, --result FILE.
Keys of the request: stream, reseat, rescale.
"""

from __future__ import annotations

import sys

from capstan import jobs

if __name__ == "__main__":
    sys.exit(jobs.main(jobs.capture))
