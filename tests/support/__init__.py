"""Parts for tests, imported by tests only."""

from tests.support import former_paths

former_paths.install()
