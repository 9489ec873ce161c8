"""The S3 server of tests: moto, with puts one at a time.

moto looks for an object and then stores it, and answers requests in threads. Two puts at once can
both find nothing under `If-None-Match`, and both succeed. S3 promises that one does.

`s3_server` runs this file in the environment of `make objects`, which does not have this project.
"""

import sys
import threading
from typing import Any

from moto.s3.responses import S3Response  # type: ignore[import-not-found]
from moto.server import main  # type: ignore[import-not-found]

_lock = threading.Lock()
_put_object = S3Response.put_object


def _put_alone(response: Any) -> Any:
    with _lock:
        return _put_object(response)


if __name__ == "__main__":
    S3Response.put_object = _put_alone
    main(sys.argv[1:])
