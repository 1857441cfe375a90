"""`pybroker pipeline lake`: writes topics to open tables, exactly once: Iceberg, Delta or Parquet on any fsspec target.

Exit codes: 0 done or stopped, 1 failed (no row is lost or duplicated; stderr has the error), 2 wrong options, 3 another
process holds the lease, 4 another process has taken over.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pybroker.client.failures import ClientError
from pybroker.columns.bad_records import BadEntry
from pybroker.columns.values.declared import WrongColumns
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.lake.evolution import EvolutionRefused
from pybroker.lake.lake_pipeline import Figures, LakePipeline, LeaseHeld, LeaseLost
from pybroker.lake.metrics import LakeMetrics
from pybroker.lake.opening import (
    connection_values,
    lake_options,
    maintenance_options,
    open_table,
    selection,
    source_options,
)
from pybroker.lake.pipeline_service import LakeService, ServiceOptions
from pybroker.lake.progress import ProgressUnreadable
from pybroker.lake.settings import FORMATS, OF_CONNECTION, LakeSettings, SettingsRefused, load_settings
from pybroker.lake.table_format import LakeError, TableMissing
from pybroker.lake.table_maintenance import Maintenance
from pybroker.lake.topic_planning import SourcePlanner
from pybroker.lake.typed_rows import close_idle_sources, reading_maker
from pybroker.lake.workers import ThreadWorkers, Workers
from pybroker.pipelines.connecting import Connect
from pybroker.reading.sources import open_source
from pybroker.reading.typed import DifferentSchemas
from pybroker.runtime import logs

# Unusable content of a schema or a table. Any other ValueError is a bug, and shows its traceback.
_VALUE_ERRORS = (EvolutionRefused, ProgressUnreadable, UnreadableSchema, DifferentSchemas, WrongColumns)
EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_TAKEN_OVER = 1, 2, 3, 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of the command. The file of --config may contain the same settings."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="TOML file with settings named like these options")
    read = parser.add_argument_group("input")
    read.add_argument(
        "--topic",
        action="append",
        dest="topics",
        metavar="TOPIC",
        help="may be repeated; topics must have the same schema",
    )
    read.add_argument("--topics-pattern", metavar="P", help="persistent://TENANT/NAMESPACE/EXPRESSION")
    read.add_argument(
        "--start", metavar="WHERE", help="earliest (default), latest or a time; for topics new to the table"
    )
    read.add_argument(
        "--on-data-loss", metavar="W", help="fail (default) or skip: handling of lost entries after a position"
    )
    read.add_argument("--read-mode", metavar="M", help="auto (default), segment, bulk or binary")
    read.add_argument(
        "--data-directory", metavar="DIR", help="data directory of a broker on this host, for --read-mode segment"
    )
    read.add_argument(
        "--progress-subscription", metavar="S", help="durable subscription whose position follows that of the table"
    )
    rows = parser.add_argument_group("rows and tables")
    rows.add_argument("--format", metavar="F", help=", ".join(FORMATS) + "; default: the first one")
    rows.add_argument("--table", metavar="T", help="namespace.name for Iceberg, else a path below --target")
    rows.add_argument("--target", metavar="URL", help="directory or URL of the tables")
    rows.add_argument(
        "--name", metavar="N", help="name of the pipeline (main), under which the table stores its positions"
    )
    rows.add_argument(
        "--partition-by", metavar="P", help="none (default), publish-hour, publish-day, event-hour, event-day"
    )
    rows.add_argument("--columns", metavar="C,C", type=_list, help="columns to write; * for the columns of the schema")
    rows.add_argument("--value-mode", metavar="M", help="auto (default): by schema; raw: bytes")
    rows.add_argument("--bad-records", metavar="B", help="fail (default), null or column (__error)")
    rows.add_argument(
        "--missing-fields", metavar="M", help="fail (default) or null: Avro fields that older schemas do not have"
    )
    rows.add_argument("--on-incompatible", metavar="W", help="fail (default) or new-column: a type that does not fit")
    rows.add_argument("--rename", action="append", metavar="NEW=OLD", help="write a column under another name")
    rows.add_argument("--catalog-name", metavar="N", help="name of the Iceberg catalog (pybroker)")
    rows.add_argument(
        "--catalog", action="append", metavar="KEY=VALUE", type=_pair, help="a property of pyiceberg's catalog"
    )
    rows.add_argument(
        "--storage", action="append", metavar="KEY=VALUE", type=_pair, help="an option of fsspec's target"
    )
    run_group = parser.add_argument_group("operation")
    run_group.add_argument("--once", action="store_true", help="end when the table has all current messages")
    run_group.add_argument("--interval", metavar="S", help="seconds between checks for new messages (10)")
    run_group.add_argument(
        "--take-over", action="store_true", help="take the lease from another process; that process then ends"
    )
    run_group.add_argument(
        "--lease", metavar="S", help="seconds after a commit in which other processes cannot write (300)"
    )
    run_group.add_argument("--commit-bytes", metavar="B", help="size of stored entries in one commit (512m)")
    run_group.add_argument("--target-file-bytes", metavar="B", help="size of data files (256m)")
    run_group.add_argument("--compression", metavar="C", help="zstd (default), snappy, lz4, gzip, none")
    run_group.add_argument("--workers", metavar="N", help="threads that read and write (2)")
    run_group.add_argument(
        "--spark", action="store_true", help="read and write in tasks of spark-submit's Spark session"
    )
    run_group.add_argument(
        "--dry-run", action="store_true", help="show the content of the next commit, and change nothing"
    )
    run_group.add_argument(
        "--maintain",
        action="store_true",
        help="merge files, expire versions and remove orphaned files once, without reading topics",
    )
    run_group.add_argument("--merge-small-files", metavar="yes|no", help="merge small files between commits (yes)")
    run_group.add_argument("--keep-snapshots", metavar="N", help="versions to keep (50)")
    run_group.add_argument("--keep-hours", metavar="H", help="also keep versions that are younger than this (0)")
    run_group.add_argument(
        "--orphan-age-hours", metavar="H", help="minimum age of orphaned files that are removed (24)"
    )
    run_group.add_argument(
        "--metrics-port", type=int, metavar="N", help="Prometheus metrics on 127.0.0.1, 0 for a free port"
    )
    run_group.add_argument(
        "--metrics-file", type=Path, metavar="FILE", help="write the metrics to a file after each commit"
    )
    run_group.add_argument("--json", action="store_true", help="print a JSON object for each commit and at the end")
    run_group.add_argument("--log-level", default="info", metavar="L", help="debug, info, warning or error")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError("KEY=VALUE")  # the text may contain a secret
    return key, value


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, connect: Connect) -> int:
    if options.log_level not in ("debug", "info", "warning", "error"):
        parser.error("--log-level: debug, info, warning or error")
    logs.configure(options.log_level)
    overrides = {key: value for key, value in vars(options).items() if key not in OF_CONNECTION}  # `connect` uses those
    for name in ("catalog", "storage"):
        overrides[name] = dict(overrides[name]) if overrides[name] else None
    try:
        settings = load_settings(options.config, overrides, needs_topics=not options.maintain)
        return _run(settings, options, connect)
    except SettingsRefused as error:
        for problem in error.problems:
            _say(problem)
        return EXIT_USAGE
    except LeaseHeld as error:
        _say(str(error))
        return EXIT_REFUSED
    except LeaseLost as error:
        _say(str(error))
        return EXIT_TAKEN_OVER
    except (LakeError, ClientError, BadEntry, *_VALUE_ERRORS, OSError) as error:
        _say(str(error))
        return EXIT_FAILED


def _say(text: str) -> None:
    sys.stderr.write(f"pybroker: {text}\n")


def _print(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, sort_keys=True) + "\n")
    sys.stdout.flush()


def _run(settings: LakeSettings, options: argparse.Namespace, connect: Connect) -> int:
    with ExitStack() as stack:
        if options.maintain:
            table = open_table(settings)
            stack.callback(table.close)
            return _maintain(Maintenance(table, maintenance_options(settings)), options)
        where = source_options(settings, connect(settings.topics, connection_values(settings)))
        source = open_source(where)
        planner = SourcePlanner(source, selection(settings), reading_maker(settings, where))
        stack.callback(planner.close)
        table = open_table(settings, planner.topics())
        stack.callback(table.close)
        workers = _workers(settings, options)
        stack.callback(close_idle_sources)
        stack.callback(workers.close)
        owner = f"{socket.gethostname()}:{os.getpid()}"
        pipeline = LakePipeline(table, planner, workers, lake_options(settings, owner, takes_over=options.take_over))
        if options.dry_run:
            return _dry_run(pipeline, options)
        return _serve(settings, options, pipeline, planner, Maintenance(table, maintenance_options(settings)))


def _workers(settings: LakeSettings, options: argparse.Namespace) -> Workers:
    if not options.spark:
        return ThreadWorkers(settings.workers)
    from pybroker.pipelines.spark_workers import SparkWorkers  # noqa: PLC0415  (Spark is half a gigabyte)

    return SparkWorkers()


def _serve(
    settings: LakeSettings,
    options: argparse.Namespace,
    pipeline: LakePipeline,
    planner: SourcePlanner,
    maintenance: Maintenance,
) -> int:
    metrics = LakeMetrics(pipeline.figures, settings.name, settings.table)
    if options.metrics_port is not None:
        logs.info("lake.metrics_served", port=metrics.serve(options.metrics_port))
    with _Bar(options.json or not sys.stderr.isatty()) as bar:

        def on_commit(figures: Figures) -> None:
            bar.show(figures)
            if settings.progress_subscription:
                planner.show_progress(settings.progress_subscription, pipeline.state.progress.positions)
            if options.metrics_file is not None:
                metrics.write(options.metrics_file)
            if options.json:
                _print({"event": "commit", **asdict(figures)})

        service = LakeService(
            pipeline,
            maintenance,
            ServiceOptions(
                is_once=options.once, interval_s=settings.interval, merge_every=32 if settings.merge_small_files else 0
            ),
            on_commit,
        )
        _stop_on_signals(service)
        report = service.run()
    if options.metrics_file is not None:
        metrics.write(options.metrics_file)
    if options.json:
        _print({"event": "end", **asdict(report.figures), "maintenance": asdict(report.maintenance)})
    else:
        figures = report.figures
        _say(
            f"{figures.rows} rows in {figures.commits} commits and {figures.files} files; {figures.lag_bytes} bytes left to read"
        )
    return 0


def _stop_on_signals(service: LakeService) -> None:
    """Stop after the current commit on the first SIGTERM or Ctrl-C, at once on the second."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        service.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _dry_run(pipeline: LakePipeline, options: argparse.Namespace) -> int:
    try:
        pipeline.look()
    except TableMissing:
        pass  # the pipeline would create it
    batch = pipeline.plan()
    positions = {topic: list(place) for topic, place in batch.positions.items()}
    if options.json:
        _print(
            {
                "event": "plan",
                "bytes": batch.size_bytes,
                "ranges": len(batch.pieces),
                "remainingBytes": batch.remaining_bytes,
                "positions": positions,
            }
        )
        return 0
    for piece in batch.pieces:
        part = piece.entries
        where = f"{part.topic} {part.ledger_id}:{part.first_entry_id} to {part.ledger_id}:{part.end_entry_id}"
        sys.stdout.write(f"{where} about {piece.size_bytes} bytes\n")
    rest = f"{batch.remaining_bytes} bytes in later commits; nothing was changed"
    sys.stdout.write(f"{batch.size_bytes} bytes in {len(batch.pieces)} ranges in the next commit, {rest}\n")
    return 0


def _maintain(maintenance: Maintenance, options: argparse.Namespace) -> int:
    now_ms = int(time.time() * 1000)
    if options.dry_run:
        orphans = maintenance.clean(now_ms, is_dry=True)
        _print({"event": "maintenance", "orphans": orphans}) if options.json else _say(f"{len(orphans)} orphaned files")
        return 0
    done = maintenance.merge()
    done.expired_versions = maintenance.expire(now_ms)
    done.removed_orphans = len(maintenance.clean(now_ms))
    if options.json:
        _print({"event": "maintenance", **asdict(done)})
    else:
        _say(
            f"{done.merged_files} files became {done.merged_into}, {done.expired_versions} versions expired, "
            f"{done.removed_orphans} orphaned files removed"
        )
    return 0


class _Bar:
    def __init__(self, is_silent: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=is_silent,
        )
        self._task = self._progress.add_task("waiting", total=None)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, figures: Figures) -> None:
        total = figures.bytes_read + figures.lag_bytes
        text = f"{figures.rows:,} rows, {figures.commits} commits"
        self._progress.update(self._task, description=text, completed=figures.bytes_read, total=total or None)
