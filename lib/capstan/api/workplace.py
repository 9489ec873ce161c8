"""A lake with its declarations, and the Spark session that works on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from capstan.core.config import ProjectConfig
from capstan.core.config.loading.loader import load_optional
from capstan.core.environment import lake_of
from capstan.errors import InvalidRequestError
from capstan.errors.translation import translating

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.spark.session import Later
    from capstan.storage.lake import Lake

# Those that have a session.
_open: WeakSet[Workplace] = WeakSet()


@translating
class Workplace:
    """A lake with its declarations, and the Spark session that works on it.

    Can be used as a context manager: a session that it has started ends with the block. Threads may
    share it: each call works in a session of its own.
    """

    def __init__(
        self,
        lake: str | Path | None = None,
        *,
        config: str | Path | None = None,
        spark: SparkSession | Later | None = None,
    ) -> None:
        """Name the lake; nothing is opened yet.

        Args:
            lake: The lake's folder or URI; by default `CAPSTAN_LAKE`, or `./lake`.
            config: The declaration file; by default `CAPSTAN_CONFIG`, or `dags/streams.yaml`.
            spark: A session of the caller's, with Delta, whose settings are not changed; or a
                function that builds one, which ends with this context.
        """
        self._place = lake_of(lake)
        self._config = None if config is None else str(config)
        self._given = spark
        self._session: SparkSession | None = None
        self._started = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lake.root!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the Spark session if this context has started it, and no other one uses it."""
        with self._lock:
            session, self._session = self._session, None
            started, self._started = self._started, False
            _open.discard(self)
        if session is None or not started:
            return
        heir = next((place for place in list(_open) if place._shares(session)), None)
        if heir is None:
            session.stop()
        else:
            heir._started = True

    def _shares(self, session: SparkSession) -> bool:
        return self._session is not None and self._session.sparkContext is session.sparkContext

    @cached_property
    def lake(self) -> Lake:
        """The lake, which may not exist."""
        from capstan.storage.lake import Lake

        return Lake.at(self._place)

    @property
    def declarations(self) -> ProjectConfig:
        """What the declaration file declares; nothing when none was named and there is none."""
        return self.declared()

    def declared(self, *, required: bool = False) -> ProjectConfig:
        """The declarations; with `required`, there must be a declaration file."""
        return load_optional(self._config, lake=self.lake.root, required=required)

    @property
    def spark(self) -> SparkSession:
        """The Spark session: the caller's with settings of its own, or one that is started now."""
        with self._lock:
            if self._session is None:
                from capstan.spark.guest_session import open_session

                self._session, self._started = open_session(self._given, self.lake.root)
                _open.add(self)
            return self._session

    @contextmanager
    def session(self, config: ProjectConfig | None = None) -> Iterator[SparkSession]:
        """A session for one call, which no other call has; its log lines name the run."""
        with self.later(config) as session:
            yield session()

    @contextmanager
    def later(self, config: ProjectConfig | None = None) -> Iterator[Later]:
        """The same with a session that starts at the first call: the work may not need it."""
        with ExitStack() as ended:

            @cache
            def session() -> SparkSession:
                from capstan.spark.guest_session import call_session
                from capstan.spark.log_lines import marked
                from capstan.spark.own_session import active
                from capstan.spark.setup.code_archive import add_modules

                own = call_session(self.spark)
                add_modules(own, self._modules(config))
                ended.enter_context(active(own))
                ended.enter_context(marked(own))
                return own

            yield session

    def _modules(self, config: ProjectConfig | None) -> tuple[Path, ...]:
        """Modules beside the declarations; none if these cannot be read and are not needed."""
        if config is not None:
            return config.modules
        try:
            return load_optional(self._config, lake=self.lake.root).modules
        except InvalidRequestError:
            return ()
