"""Arguments of programs that are no command of `capstan`."""

from __future__ import annotations

import argparse
from typing import NoReturn

from capstan.errors import InvalidRequestError


class ArgumentParser(argparse.ArgumentParser):
    """Raises what it cannot read, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise InvalidRequestError("CAP-USAGE", message, f"see `{self.prog} --help`")
