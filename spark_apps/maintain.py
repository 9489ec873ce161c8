"""Keep up the tapes of streams, and what all streams of the lake share.

Arguments: a file with the request as JSON (or --request JSON), --lake, --streams, --result FILE.
Keys of the request: streams, a list of names, all of the lake without it; keep, how long what was
staged and nobody can publish any more is kept, such as "30 days".
"""

from __future__ import annotations

import sys

from capstan import jobs

if __name__ == "__main__":
    sys.exit(jobs.main(jobs.maintain))
