"""The service that runs a pipeline until it is stopped, with maintenance between commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pybroker.client.failures import ClientError
from pybroker.lake import steps
from pybroker.lake.lake_pipeline import Figures, LakePipeline, LeaseLost
from pybroker.lake.table_format import LakeError
from pybroker.lake.table_maintenance import Done, Maintenance
from pybroker.reading.entry_source import DataLoss
from pybroker.runtime import logs

LONGEST_PAUSE_S = 30.0
MAX_FAILURES = 10
"""Limit of consecutive failures of storage or catalog. There is no limit for an unreachable broker."""


@dataclass(frozen=True)
class ServiceOptions:
    """Options of the service. Times in seconds."""

    is_once: bool = False
    """Whether to end when all entries are committed, instead of waiting for more."""
    interval_s: float = 10.0
    """Pause between two polls without new entries; also the longest delay before a row is read."""
    merge_every: int = 32
    """Commits between two merges of small files; 0 disables them."""
    expire_every: int = 64
    """Commits between two expirations of old versions; 0 disables them."""
    clean_interval_s: float = 3600.0
    """Time between two cleanings of files that no version names; 0 disables them."""


@dataclass
class Report:
    """The result of a pipeline's run, for `--json`."""

    figures: Figures
    maintenance: Done = field(default_factory=Done)


class LakeService:
    """Runs one pipeline in the calling thread.

    `stop` may be called from any thread or a signal handler: the service then finishes the current commit and releases
    the lease.
    """

    def __init__(
        self,
        pipeline: LakePipeline,
        maintenance: Maintenance | None,
        options: ServiceOptions,
        on_commit: Callable[[Figures], None] = lambda _: None,
    ) -> None:
        self._pipeline = pipeline
        self._maintenance = maintenance
        self._options = options
        self._on_commit = on_commit
        self._stopping = threading.Event()
        self._commits_at_merge = 0
        self._commits_at_expiry = 0
        self._cleaned_at_s = -float("inf")
        self.report = Report(pipeline.figures)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> Report:
        self._pipeline.begin()
        try:
            self._loop()
        except LeaseLost:
            raise
        except BaseException:
            self._release()
            raise
        self._pipeline.end()
        return self.report

    def _release(self) -> None:
        try:
            self._pipeline.end()
        except (LakeError, OSError) as error:
            logs.warning("lake.lease_not_released", error=str(error))

    def _loop(self) -> None:
        failures = 0
        pause_s = 1.0
        must_look = False
        while not self._stopping.is_set():
            try:
                if must_look:
                    self._pipeline.refresh()
                has_committed = self._pipeline.step()
                if has_committed:
                    self._on_commit(self._pipeline.figures)
                self._maintain()
                failures, pause_s, must_look = 0, 1.0, False
            except (DataLoss, LakeError):
                raise
            except ClientError as error:
                if self._options.is_once:
                    raise
                logs.warning("lake.reading_failed", error=str(error), again_in_s=pause_s)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            except OSError as error:
                # The commit may or may not have succeeded: reload the table.
                failures += 1
                if failures >= MAX_FAILURES:
                    raise LakeError(
                        f"the table's storage failed repeatedly: {error}. Check the storage and start the pipeline again"
                    ) from error
                logs.warning("lake.storage_failed", error=str(error), again_in_s=pause_s)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                must_look = True
                continue
            if not has_committed:
                if self._options.is_once:
                    return
                self._stopping.wait(self._options.interval_s)
                must_look = True

    def _maintain(self) -> None:
        maintenance, options, done = self._maintenance, self._options, self.report.maintenance
        if maintenance is None:
            return
        commits = self._pipeline.figures.commits
        now_ms = int(time.time() * 1000)
        has_changed = False
        if options.merge_every and commits - self._commits_at_merge >= options.merge_every:
            self._commits_at_merge = commits
            merged = maintenance.merge()
            done.merged_files += merged.merged_files
            done.merged_into += merged.merged_into
            has_changed = merged.merged_files > 0
            steps.reached("merged")
        if options.expire_every and commits - self._commits_at_expiry >= options.expire_every:
            self._commits_at_expiry = commits
            done.expired_versions += maintenance.expire(now_ms)
            has_changed = True
        if options.clean_interval_s and time.monotonic() - self._cleaned_at_s >= options.clean_interval_s:
            self._cleaned_at_s = time.monotonic()
            done.removed_orphans += len(maintenance.clean(now_ms))
        if has_changed:
            self._pipeline.refresh()
