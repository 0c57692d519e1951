"""Runners of apps and jobs, as the Connection `millrace_spark` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.errors import Code, RefusedError, UsageError
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.domain.declaration.pipeline import Pipeline, Stream
    from millrace.domain.streams.hosts import Host
    from millrace.ports.jobs import Recomputation, Redriving
    from millrace.ports.runner import StreamRunner

SPARK = "millrace_spark"


@dataclass(frozen=True)
class AppAdapters:
    """Runners of apps and jobs (`ports.platform.Apps`)."""

    settings: Settings
    _runners: list[StreamRunner] = field(default_factory=list, repr=False)

    def runner(self) -> StreamRunner:
        """Return the runner `process` for a `millrace_spark` whose host is `local`.

        Raises:
            RefusedError: the apps run in another container.
            UsageError: the Connection asks for a runner that does not exist.
        """
        host = self.settings.connection(SPARK).host if self.settings.lookup(SPARK) else "local"
        if host != "local":
            raise UsageError(
                f"a Spark at `{host}` is not supported yet",
                where="connection " + SPARK,
                next_step="run this where the host of the connection is `local`: apps are processes of that machine "
                "(with docker-compose.yaml, of the container `streams`)",
                code=Code.UNSUPPORTED,
            )
        self._must_be_here()
        return self._process_runner()

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        """Return the last lines of an epoch's driver; also where no app may be started."""
        return self._process_runner().last_lines(stream, epoch, count)

    def host(self) -> Host:
        """Return this host; its identity is empty before the first start, and where it cannot be read."""
        from millrace.adapters.apps.host import read_host

        return read_host(self.settings.root)

    def make_host(self) -> Host:
        """Return this host, with a new identity where it has none.

        Raises:
            RefusedError: the file of its identity is damaged, or cannot be written.
        """
        from millrace.adapters.apps.host import make_host

        return make_host(self.settings.root)

    def digest_of(self, pipeline: Pipeline, stream: Stream) -> str:
        """Return the digest of the code and the declaration of a stream."""
        from millrace.adapters.apps.code import digest_of

        return digest_of(self.settings.root, pipeline, stream)

    def recomputation(self) -> Recomputation:
        """Return the job that computes rows again: Spark, in a process of its own, where apps run.

        Raises:
            RefusedError: the apps run in another container.
        """
        from millrace.adapters.apps.jobs.recompute import RecomputeJob

        self._must_be_here()
        return RecomputeJob(self.settings)

    def redriving(self) -> Redriving:
        """Return the job that redrives quarantined records: Spark, in a process of its own, where apps run.

        Raises:
            RefusedError: the apps run in another container.
        """
        from millrace.adapters.apps.jobs.redrive import RedriveJob

        self._must_be_here()
        return RedriveJob(self.settings)

    def _must_be_here(self) -> None:
        from millrace.adapters.apps.processes import is_elsewhere

        if is_elsewhere(self.settings.root):
            raise RefusedError(
                "the apps of this project run in another container and are not visible here",
                where=str(self.settings.root),
                next_step="run this in that container: `docker compose exec streams ./millrace ...`",
                code=Code.OTHER_HOST,
            )

    def _process_runner(self) -> StreamRunner:
        if not self._runners:
            from millrace.adapters.apps.runners.process import ProcessRunner

            self._runners.append(ProcessRunner(self.settings))
        return self._runners[0]
