"""Put late records of a stream back on its tape, at the frontier."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import put_back
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(put_back))
